package fakemodal

import (
	"context"
	"maps"
	"slices"
	"sync"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// maxUpdates is the largest number of entries of one DictUpdate.
const maxUpdates = 10_000

// A dict maps keys to values.
type dict struct {
	mu      sync.Mutex
	entries map[string][]byte
}

func newDict(data []*pb.DictEntry) *dict {
	d := &dict{entries: map[string][]byte{}}
	d.putEntries(data, false)
	return d
}

// putEntries adds entries and reports whether one of the keys is new. With ifNotExists, it does not
// replace values.
func (d *dict) putEntries(entries []*pb.DictEntry, ifNotExists bool) (created bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range entries {
		_, there := d.entries[string(e.GetKey())]
		if !there || !ifNotExists {
			d.entries[string(e.GetKey())] = slices.Clone(e.GetValue())
		}
		created = created || !there
	}
	return created
}

// DictGetOrCreate returns the dict with a name, or creates one.
func (s *Server) DictGetOrCreate(_ context.Context, req *pb.DictGetOrCreateRequest) (*pb.DictGetOrCreateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.dicts.getOrCreate(s.nextTime(), objectRequest{req.GetDeploymentName(), req.GetEnvironmentName(), req.GetObjectCreationType()},
		func(string) (*dict, error) { return newDict(req.GetData()), nil })
	if err != nil {
		return nil, err
	}
	return pb.DictGetOrCreateResponse_builder{DictId: d.id, Metadata: dictMetadata(d)}.Build(), nil
}

func dictMetadata(d *object[*dict]) *pb.DictMetadata {
	return pb.DictMetadata_builder{Name: d.name, CreationInfo: d.creationInfo()}.Build()
}

// DictHeartbeat checks that the dict exists. Dicts without a name do not expire.
func (s *Server) DictHeartbeat(_ context.Context, req *pb.DictHeartbeatRequest) (*emptypb.Empty, error) {
	if _, err := s.findDict(req.GetDictId()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

func (s *Server) findDict(id string) (*dict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.dicts.getObject(id)
	if err != nil {
		return nil, err
	}
	return d.value, nil
}

// withDict calls do with the entries of a dict, which are locked meanwhile.
func (s *Server) withDict(id string, do func(entries map[string][]byte)) error {
	d, err := s.findDict(id)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	do(d.entries)
	return nil
}

// DictUpdate adds entries to a dict. With IfNotExists, it does not replace values.
func (s *Server) DictUpdate(_ context.Context, req *pb.DictUpdateRequest) (*pb.DictUpdateResponse, error) {
	d, err := s.findDict(req.GetDictId())
	if err != nil {
		return nil, err
	}
	if len(req.GetUpdates()) > maxUpdates {
		return nil, status.Errorf(codes.InvalidArgument, "Dict update has too many entries: %d, at most %d are allowed", len(req.GetUpdates()), maxUpdates)
	}
	return pb.DictUpdateResponse_builder{Created: d.putEntries(req.GetUpdates(), req.GetIfNotExists())}.Build(), nil
}

// DictGet returns a value.
func (s *Server) DictGet(_ context.Context, req *pb.DictGetRequest) (*pb.DictGetResponse, error) {
	resp := &pb.DictGetResponse{}
	return resp, s.withDict(req.GetDictId(), func(entries map[string][]byte) {
		value, found := entries[string(req.GetKey())]
		if resp.SetFound(found); found {
			resp.SetValue(value)
		}
	})
}

// DictPop removes a key and returns its value.
func (s *Server) DictPop(_ context.Context, req *pb.DictPopRequest) (*pb.DictPopResponse, error) {
	resp := &pb.DictPopResponse{}
	return resp, s.withDict(req.GetDictId(), func(entries map[string][]byte) {
		value, found := entries[string(req.GetKey())]
		delete(entries, string(req.GetKey()))
		if resp.SetFound(found); found {
			resp.SetValue(value)
		}
	})
}

// DictContains reports whether a dict has a key.
func (s *Server) DictContains(_ context.Context, req *pb.DictContainsRequest) (*pb.DictContainsResponse, error) {
	resp := &pb.DictContainsResponse{}
	return resp, s.withDict(req.GetDictId(), func(entries map[string][]byte) {
		_, found := entries[string(req.GetKey())]
		resp.SetFound(found)
	})
}

// DictLen returns the number of keys.
func (s *Server) DictLen(_ context.Context, req *pb.DictLenRequest) (*pb.DictLenResponse, error) {
	resp := &pb.DictLenResponse{}
	return resp, s.withDict(req.GetDictId(), func(entries map[string][]byte) { resp.SetLen(int32(len(entries))) })
}

// DictContents streams keys, values or both, as they are at the time of the call.
func (s *Server) DictContents(req *pb.DictContentsRequest, stream grpc.ServerStreamingServer[pb.DictEntry]) error {
	d, err := s.findDict(req.GetDictId())
	if err != nil {
		return err
	}
	d.mu.Lock()
	entries := maps.Clone(d.entries)
	d.mu.Unlock()
	for key, value := range entries {
		entry := &pb.DictEntry{}
		if req.GetKeys() {
			entry.SetKey([]byte(key))
		}
		if req.GetValues() {
			entry.SetValue(value)
		}
		if err := stream.Send(entry); err != nil {
			return err
		}
	}
	return nil
}

// DictClear removes all entries.
func (s *Server) DictClear(_ context.Context, req *pb.DictClearRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.withDict(req.GetDictId(), func(entries map[string][]byte) { clear(entries) })
}

// DictDelete deletes a dict.
func (s *Server) DictDelete(_ context.Context, req *pb.DictDeleteRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.dicts.removeObject(req.GetDictId()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// DictList lists the named dicts, newest first.
func (s *Server) DictList(_ context.Context, req *pb.DictListRequest) (*pb.DictListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []*pb.DictListResponse_DictInfo
	for _, d := range s.dicts.listPage(req.GetEnvironmentName(), req.GetPagination()) {
		infos = append(infos, pb.DictListResponse_DictInfo_builder{Name: d.name, CreatedAt: unixSeconds(d.created), DictId: d.id, Metadata: dictMetadata(d)}.Build())
	}
	return pb.DictListResponse_builder{Dicts: infos, EnvironmentName: req.GetEnvironmentName()}.Build(), nil
}
