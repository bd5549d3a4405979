package fakemodal

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
)

// EnvironmentGetOrCreate returns the environment with a name, or the default one. Every environment
// exists.
func (s *Server) EnvironmentGetOrCreate(_ context.Context, req *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	name := cmp.Or(req.GetDeploymentName(), defaultEnvironment)
	return pb.EnvironmentGetOrCreateResponse_builder{
		EnvironmentId: "en-" + name, Metadata: pb.EnvironmentMetadata_builder{Name: name}.Build(),
	}.Build(), nil
}

// An environmentLog records the environments that calls name.
type environmentLog struct {
	mu    sync.Mutex
	names map[string]bool
}

// noteEnvironment records the environment of a request, if it names one.
func (a *environmentLog) noteEnvironment(req any) {
	switch req.(type) {
	case *pb.SandboxCreateRequest, *pb.SandboxTagsSetRequest, *pb.VolumeDeleteRequest:
		return // the environment follows from an app, a sandbox or a volume
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

// Environments returns the names of the environments of all calls so far.
func (s *Server) Environments() []string {
	s.environments.mu.Lock()
	defer s.environments.mu.Unlock()
	return slices.Sorted(maps.Keys(s.environments.names))
}
