package fakemodal

import (
	"context"
	"maps"
	"slices"
	"strings"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// AppGetOrCreate returns the app with a name, or creates it.
func (s *Server) AppGetOrCreate(_ context.Context, req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	app, err := s.apps.getOrCreate(s.nextTime(), objectRequest{req.GetAppName(), req.GetEnvironmentName(), req.GetObjectCreationType()},
		func(string) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		return nil, err
	}
	return pb.AppGetOrCreateResponse_builder{AppId: app.id}.Build(), nil
}

// SetSecret creates or replaces a named secret in an environment; "" is the default environment.
func (s *Server) SetSecret(environment, name string, env map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.secrets.getOrCreate(s.nextTime(), objectRequest{name, environment, pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS},
		func(string) (map[string]string, error) { return maps.Clone(env), nil })
	return err
}

// SecretGetOrCreate returns the secret with a name, or creates one with the given variables.
func (s *Server) SecretGetOrCreate(_ context.Context, req *pb.SecretGetOrCreateRequest) (*pb.SecretGetOrCreateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	secret, err := s.secrets.getOrCreate(s.nextTime(), objectRequest{req.GetDeploymentName(), req.GetEnvironmentName(), req.GetObjectCreationType()},
		func(string) (map[string]string, error) {
			for key, value := range req.GetEnvDict() {
				if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
					return nil, status.Errorf(codes.InvalidArgument, "Invalid environment variable name: '%s'", key)
				}
			}
			return maps.Clone(req.GetEnvDict()), nil
		})
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, key := range req.GetRequiredKeys() {
		if _, ok := secret.value[key]; !ok {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "Secret is missing key(s): %s", strings.Join(missing, ", "))
	}
	return pb.SecretGetOrCreateResponse_builder{
		SecretId: secret.id,
		Metadata: pb.SecretMetadata_builder{Name: secret.name, CreationInfo: secret.creationInfo()}.Build(),
	}.Build(), nil
}

// SecretDelete deletes a secret.
func (s *Server) SecretDelete(_ context.Context, req *pb.SecretDeleteRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.secrets.removeObject(req.GetSecretId()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// secretEnv returns the variables of secrets as "KEY=value", sorted by key. Later secrets override
// earlier ones. The caller holds mu.
func (s *Server) secretEnv(secretIDs []string) ([]string, error) {
	all := map[string]string{}
	for _, id := range secretIDs {
		secret, err := s.secrets.getObject(id)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, secret.value)
	}
	var env []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		env = append(env, key+"="+all[key])
	}
	return env, nil
}
