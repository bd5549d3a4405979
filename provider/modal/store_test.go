//go:build linux

package modal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakemodal"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// stores returns a server without sandboxes, and a function that opens a program's store of one
// name there.
func stores(t *testing.T) (*fakemodal.Server, func() *store) {
	t.Helper()
	backend, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := fakemodal.New(fakemodal.Options{Backend: backend, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), backend.Close()); err != nil {
			t.Error(err)
		}
	})
	return server, func() *store {
		opts := &Options{ServerURL: server.URL(), TokenID: server.TokenID(), TokenSecret: server.TokenSecret()}
		s, err := newService(opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		if err := s.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		return newStore(s, "book")
	}
}

// add increments the number of a subject.
func add(ctx context.Context, b *store, key string) error {
	for {
		at, err := b.readLatest(ctx, subjectKey("k", key))
		if err != nil {
			return err
		}
		var n int
		if at != nil {
			if _, err := fmt.Sscan(string(at.Value), &n); err != nil {
				return err
			}
		}
		_, err = b.writeNext(ctx, "k", key, at, n+1)
		if !errors.Is(err, errWrittenElsewhere) {
			return err
		}
	}
}

// If many programs change the same subject at once, no change is lost, even if answers are.
func TestStoreIsWrittenByMany(t *testing.T) {
	server, open := stores(t)
	const programs, changes = 6, 15
	var all sync.WaitGroup
	for range programs {
		b := open()
		all.Go(func() {
			for i := range changes {
				if i%5 == 0 {
					server.DropAnswer("DictUpdate")
				}
				if err := add(t.Context(), b, "one"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	at, err := open().readLatest(t.Context(), subjectKey("k", "one"))
	if err != nil || string(at.Value) != fmt.Sprint(programs*changes) || at.Number != programs*changes {
		t.Errorf("a new program reads %+v, %v; want %d", at, err, programs*changes)
	}
}

// Only one program can write the first revision, and it learns so even if the answer is lost.
func TestStoreHasOneFirstRevision(t *testing.T) {
	server, open := stores(t)
	server.DropAnswer("DictUpdate")
	b := open()
	at, err := b.writeNext(t.Context(), "k", "lost", nil, "mine")
	if err != nil || at.Number != 1 {
		t.Errorf("the writer got %+v, %v", at, err)
	}
	if _, err := open().writeNext(t.Context(), "k", "lost", nil, "mine"); !errors.Is(err, errWrittenElsewhere) {
		t.Errorf("another writer got %v, want errWrittenElsewhere", err)
	}
	const programs = 8
	won := make(chan bool, programs)
	var all sync.WaitGroup
	for range programs {
		b := open()
		all.Go(func() {
			_, err := b.writeNext(t.Context(), "k", "first", nil, "mine")
			if err != nil && !errors.Is(err, errWrittenElsewhere) {
				t.Error(err)
			}
			won <- err == nil
		})
	}
	all.Wait()
	n := 0
	for range programs {
		if <-won {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d of %d have written the first page", n, programs)
	}
}

// readAllLatest has all subjects at all times, while other programs write revisions.
func TestStoreShowsAll(t *testing.T) {
	_, open := stores(t)
	writer, reader := open(), open()
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for i := range 3 {
		key := fmt.Sprint(i)
		if err := add(ctx, writer, key); err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			for ctx.Err() == nil {
				if err := add(ctx, writer, key); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		all, err := reader.readAllLatest(ctx)
		if err != nil || len(all) != 3 {
			t.Errorf("there are %d subjects, %v; want 3", len(all), err)
		}
	}
	stop()
	work.Wait()
}

// A skipping is the protocol of a service that lists all entries of a Dict but the one that was
// just written.
type skipping struct {
	pb.ModalClientClient
	key string
}

func (s skipping) DictContents(ctx context.Context, req *pb.DictContentsRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[pb.DictEntry], error) {
	stream, err := s.ModalClientClient.DictContents(ctx, req, opts...)
	return skippingStream{stream, s.key}, err
}

type skippingStream struct {
	grpc.ServerStreamingClient[pb.DictEntry]
	key string
}

func (s skippingStream) Recv() (*pb.DictEntry, error) {
	for {
		entry, err := s.ServerStreamingClient.Recv()
		if err != nil || string(entry.GetKey()) != s.key {
			return entry, err
		}
	}
}

// A new program also sees the revisions that others write while it reads.
func TestStoreIsWrittenWhileItIsRead(t *testing.T) {
	_, open := stores(t)
	writer, reader := open(), open()
	const turned = 3
	for range turned {
		if err := add(t.Context(), writer, "one"); err != nil {
			t.Fatal(err)
		}
	}
	of := subjectKey("k", "one")
	reader.service.pb = skipping{reader.service.pb, string(revisionKey(of, turned))}
	all, err := reader.readAllLatest(t.Context())
	if at := all[of]; err != nil || at == nil || at.Number != turned || len(all) != 1 {
		t.Errorf("it has %+v, %v", all, err)
	}
}

// entries returns the keys of a store's Dict.
func entries(t *testing.T, b *store) (list []string) {
	t.Helper()
	all, err := b.readAllLatest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for of, at := range all {
		list = append(list, fmt.Sprintf("%s/%d", of, at.Number))
	}
	return list
}

// refreshAll rewrites valid revisions before Modal forgets them, deletes unneeded ones, and
// marks those that were left unmarked; it touches nothing else.
func TestStoreIsRefreshed(t *testing.T) {
	_, open := stores(t)
	b := open()
	const holds, over, spent = "", "over", "spent"
	put := func(key string, number uint64, age time.Duration, state string) {
		t.Helper()
		at := &revision{Written: time.Now().Add(-age), Writer: atoll.NewID(), Deleted: state == over, Spent: state == spent}
		if state == holds {
			at.Value = []byte(`"text"`)
		}
		text, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.updateDict(t.Context(), true, newEntry(revisionKey(subjectKey("k", key), number), text)); err != nil {
			t.Fatal(err)
		}
	}
	put("young", 1, refreshAfter/2, holds)
	put("old", 3, 2*refreshAfter, holds)
	put("gone", 2, retainSpent/2, over)
	put("long gone", 2, 2*retainSpent, over)
	put("left", 4, 2*markSpentAfter, holds)
	put("left", 5, 2*markSpentAfter, holds)
	put("left", 3, 2*retainSpent, spent)
	put("turning", 3, retainSpent/2, spent)
	put("turning", 4, 2*markSpentAfter, holds)
	put("turning", 5, 0, holds)
	before, err := b.readAllLatest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.refreshAll(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	after, err := b.readAllLatest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]struct {
		anew, there   bool
		behind, spent int
	}{
		"young": {false, true, 0, 0}, "old": {true, true, 0, 0}, "gone": {false, true, 0, 0}, "long gone": {},
		"left": {false, true, 0, 1}, "turning": {false, true, 1, 1},
	} {
		is, was := after[subjectKey("k", key)], before[subjectKey("k", key)]
		if (is != nil) != want.there {
			t.Errorf("%s: it is there: %v; have %q", key, is != nil, entries(t, b))
			continue
		}
		if is == nil {
			continue
		}
		if is.Written.After(was.Written) != want.anew || is.Number != was.Number || is.Writer != was.Writer || string(is.Value) != string(was.Value) || len(is.unmarked) != want.behind || len(is.spent) != want.spent {
			t.Errorf("%s: it is %+v, and was %+v", key, is, was)
		}
	}
	for _, key := range []string{"old", "left"} { // like a program that has never seen them
		if at, err := open().readLatest(t.Context(), subjectKey("k", key)); err != nil || at == nil || !strings.Contains(string(at.Value), "text") {
			t.Errorf("%s: a new reader finds %+v, %v", key, at, err)
		}
	}
}

// refreshAll skips revisions that were read long ago: other programs may have deleted them
// since.
func TestStoreRefreshesNothingStale(t *testing.T) {
	_, open := stores(t)
	b := open()
	text, err := json.Marshal(&revision{Written: time.Now().Add(-2 * refreshAfter), Writer: atoll.NewID(), Value: []byte(`"text"`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.updateDict(t.Context(), true, newEntry(revisionKey(subjectKey("k", "one"), 1), text)); err != nil {
		t.Fatal(err)
	}
	all, err := b.readAllLatest(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("it has %v, %v", all, err)
	}
	for _, at := range all {
		at.readAt = at.readAt.Add(-2 * staleAfter)
	}
	if err := open().deleteEntry(t.Context(), revisionKey(subjectKey("k", "one"), 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.refreshAll(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if all, err := open().readAllLatest(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("what was forgotten is there again: %v, %v", all, err)
	}
}

// The age of a read counts the time that the machine sleeps.
func TestStoreReadsByTheWallClock(t *testing.T) {
	_, open := stores(t)
	b := open()
	written, err := b.writeNext(t.Context(), "k", "one", nil, "text")
	if err != nil {
		t.Fatal(err)
	}
	read, err := b.readLatest(t.Context(), subjectKey("k", "one"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := b.readAllLatest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []*revision{written, read, all[subjectKey("k", "one")]} {
		if at.readAt != at.readAt.Round(0) || at.isStale() {
			t.Errorf("it was read %v", at.readAt)
		}
	}
}

// A program that knows an old revision finds the latest one, or that there is none.
func TestStoreKnowsAnOldRevision(t *testing.T) {
	_, open := stores(t)
	writer, reader := open(), open()
	turns := func(n int) {
		t.Helper()
		for range n {
			if err := add(t.Context(), writer, "one"); err != nil {
				t.Fatal(err)
			}
		}
	}
	reads := func(want string) {
		t.Helper()
		at, err := reader.readLatest(t.Context(), subjectKey("k", "one"))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(at != nil && !at.Deleted); got != fmt.Sprint(want != "") || at != nil && string(at.Value) != want {
			t.Errorf("it reads %+v, want %q", at, want)
		}
	}
	reads("")
	turns(1)
	reads("1")
	before, err := writer.readLatest(t.Context(), subjectKey("k", "one"))
	if err != nil {
		t.Fatal(err)
	}
	turns(7)
	if _, err := reader.writeNext(t.Context(), "k", "one", before, 100); !errors.Is(err, errWrittenElsewhere) {
		t.Errorf("what goes by a page that was turned is written: %v", err)
	}
	reads("8")
	if before, err = reader.readLatest(t.Context(), subjectKey("k", "one")); err != nil {
		t.Fatal(err)
	}
	before.readAt = before.readAt.Add(-2 * staleAfter)
	if _, err := reader.writeNext(t.Context(), "k", "one", before, 100); !errors.Is(err, errWrittenElsewhere) {
		t.Errorf("what goes by a page that was read long ago is written: %v", err)
	}
	last, err := writer.readLatest(t.Context(), subjectKey("k", "one"))
	if err != nil {
		t.Fatal(err)
	}
	over, err := writer.writeNext(t.Context(), "k", "one", last, nil)
	if err != nil {
		t.Fatal(err)
	}
	reads("")
	for number := range over.Number { // as refreshAll does before
		if err := writer.deleteEntry(t.Context(), revisionKey(subjectKey("k", "one"), number)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.deleteSubject(t.Context(), subjectKey("k", "one"), over.Number); err != nil {
		t.Fatal(err)
	}
	reads("")
	turns(2)
	reads("2")
}

// A deleted Dict is created again.
func TestStoreIsDeleted(t *testing.T) {
	_, open := stores(t)
	b := open()
	if err := add(t.Context(), b, "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.service.pb.DictDelete(t.Context(), pb.DictDeleteRequest_builder{DictId: b.dict}.Build()); err != nil {
		t.Fatal(err)
	}
	if all, err := b.readAllLatest(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("it has %v, %v", all, err)
	}
	if err := add(t.Context(), b, "one"); err != nil {
		t.Error(err)
	}
}

// Every program sees a damaged revision, and can write the next one.
func TestStoreIsDamaged(t *testing.T) {
	_, open := stores(t)
	b := open()
	if _, err := b.updateDict(t.Context(), true, newEntry(revisionKey(subjectKey("k", "one"), 1), []byte("\x80\x04garbage"))); err != nil {
		t.Fatal(err)
	}
	all, err := b.readAllLatest(t.Context())
	if at := all[subjectKey("k", "one")]; err != nil || at == nil || at.Value != nil || at.Deleted {
		t.Errorf("it is %+v, %v", at, err)
	}
	at, err := open().readLatest(t.Context(), subjectKey("k", "one"))
	if err != nil || at == nil || at.Number != 1 || at.Value != nil {
		t.Fatalf("it is %+v, %v", at, err)
	}
	if _, err := b.writeNext(t.Context(), "k", "one", at, nil); err != nil {
		t.Error(err)
	}
	if at, err := open().readLatest(t.Context(), subjectKey("k", "one")); err != nil || at == nil || !at.Deleted {
		t.Errorf("it is %+v, %v", at, err)
	}
}
