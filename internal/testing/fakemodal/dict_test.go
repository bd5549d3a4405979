//go:build linux

package fakemodal_test

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
)

func TestDicts(t *testing.T) {
	l := newLab(t)
	named := func(creation pb.ObjectCreationType) (*pb.DictGetOrCreateResponse, error) {
		return l.raw.DictGetOrCreate(l.ctx(), pb.DictGetOrCreateRequest_builder{DeploymentName: "records", ObjectCreationType: creation}.Build())
	}
	_, err := named(pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED)
	wantCode(t, "dict that is not there", err, codes.NotFound, "records")
	made, err := named(pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING)
	l.must("dict", err)
	id := made.GetDictId()
	update := func(key, value string, ifNotExists bool) bool {
		resp, err := l.raw.DictUpdate(l.ctx(), pb.DictUpdateRequest_builder{
			DictId: id, IfNotExists: ifNotExists, Updates: []*pb.DictEntry{pb.DictEntry_builder{Key: []byte(key), Value: []byte(value)}.Build()},
		}.Build())
		l.must("update", err)
		return resp.GetCreated()
	}
	get := func(key string) string {
		resp, err := l.raw.DictGet(l.ctx(), pb.DictGetRequest_builder{DictId: id, Key: []byte(key)}.Build())
		l.must("get", err)
		if !resp.GetFound() {
			return "none"
		}
		return string(resp.GetValue())
	}
	var won atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if update("lock", "mine", true) {
				won.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d calls created the same key, want 1", won.Load())
	}
	update("lock", "other", false)
	update("b", "2", false)
	if got := []string{get("lock"), get("b"), get("c")}; !slices.Equal(got, []string{"other", "2", "none"}) {
		t.Errorf("values %q", got)
	}
	if got, want := l.dictContents(id, true, false), []string{"b=", "lock="}; !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	if got, want := l.dictContents(id, true, true), []string{"b=2", "lock=other"}; !slices.Equal(got, want) {
		t.Errorf("contents %q, want %q", got, want)
	}
	pop, err := l.raw.DictPop(l.ctx(), pb.DictPopRequest_builder{DictId: id, Key: []byte("b")}.Build())
	if err != nil || !pop.GetFound() || string(pop.GetValue()) != "2" || get("b") != "none" {
		t.Errorf("pop: %v, %v", pop, err)
	}
	size, err := l.raw.DictLen(l.ctx(), pb.DictLenRequest_builder{DictId: id}.Build())
	if err != nil || size.GetLen() != 1 {
		t.Errorf("len: %v, %v", size, err)
	}
	contains, err := l.raw.DictContains(l.ctx(), pb.DictContainsRequest_builder{DictId: id, Key: []byte("lock")}.Build())
	if err != nil || !contains.GetFound() {
		t.Errorf("contains: %v, %v", contains, err)
	}
	_, err = l.raw.DictHeartbeat(l.ctx(), pb.DictHeartbeatRequest_builder{DictId: id}.Build())
	l.must("heartbeat", err)
	_, err = l.raw.DictClear(l.ctx(), pb.DictClearRequest_builder{DictId: id}.Build())
	l.must("clear", err)
	if left := l.dictContents(id, true, true); len(left) > 0 {
		t.Errorf("after clear: %q", left)
	}
	list, err := l.raw.DictList(l.ctx(), &pb.DictListRequest{})
	if err != nil || len(list.GetDicts()) != 1 || list.GetDicts()[0].GetName() != "records" {
		t.Errorf("list: %v, %v", list, err)
	}
	_, err = l.raw.DictDelete(l.ctx(), pb.DictDeleteRequest_builder{DictId: id}.Build())
	l.must("delete", err)
	_, err = l.raw.DictGet(l.ctx(), pb.DictGetRequest_builder{DictId: id}.Build())
	wantCode(t, "get after delete", err, codes.NotFound, id)
}

// dictContents returns the streamed entries of a dict, sorted by key.
func (l *testLab) dictContents(id string, keys, values bool) (list []string) {
	l.t.Helper()
	stream, err := l.raw.DictContents(l.ctx(), pb.DictContentsRequest_builder{DictId: id, Keys: keys, Values: values}.Build())
	l.must("contents", err)
	for {
		e, err := stream.Recv()
		if err == io.EOF {
			slices.Sort(list)
			return list
		}
		l.must("contents", err)
		list = append(list, string(e.GetKey())+"="+string(e.GetValue()))
	}
}
