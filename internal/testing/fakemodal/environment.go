package fakemodal

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
)

// EnvironmentGetOrCreate finds an environment by its name, and the default one without a
// name. All are there.
func (s *Server) EnvironmentGetOrCreate(_ context.Context, req *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	name := cmp.Or(req.GetDeploymentName(), defaultEnvironment)
	return pb.EnvironmentGetOrCreateResponse_builder{
		EnvironmentId: "en-" + name, Metadata: pb.EnvironmentMetadata_builder{Name: name}.Build(),
	}.Build(), nil
}

// environmentLog are the environments of calls.
type environmentLog struct {
	mu    sync.Mutex
	names map[string]bool
}

// noteEnvironment notes which one a call is for, if it is for one.
func (a *environmentLog) noteEnvironment(req any) {
	switch req.(type) {
	case *pb.SandboxCreateRequest, *pb.SandboxTagsSetRequest, *pb.VolumeDeleteRequest:
		return // it is that of an app, a sandbox or a volume
	}
	call, ok := req.(interface{ GetEnvironmentName() string })
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.names == nil {
		a.names = map[string]bool{}
	}
	a.names[cmp.Or(call.GetEnvironmentName(), defaultEnvironment)] = true
}

// Environments returns the names of those that calls have been for.
func (s *Server) Environments() []string {
	s.asked.mu.Lock()
	defer s.asked.mu.Unlock()
	return slices.Sorted(maps.Keys(s.asked.names))
}
