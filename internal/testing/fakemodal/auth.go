package fakemodal

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// tokenTTL is the lifetime of a token of AuthTokenGet.
const tokenTTL = 20 * time.Minute

// tokens holds the issued tokens and their expiry.
type tokens struct {
	mu     sync.Mutex
	expiry map[string]time.Time
}

// AuthTokenGet issues a token in the form of a JWT.
func (s *Server) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	until := time.Now().Add(tokenTTL)
	claims, err := json.Marshal(map[string]any{"exp": until.Unix(), "jti": rand.Text()})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := strings.Join([]string{encode([]byte(`{"alg":"none","typ":"JWT"}`)), encode(claims), encode([]byte(rand.Text()))}, ".")
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	if s.tokens.expiry == nil {
		s.tokens.expiry = map[string]time.Time{}
	}
	s.tokens.expiry[token] = until
	return pb.AuthTokenGetResponse_builder{Token: token}.Build(), nil
}

// WorkspaceNameLookup returns the name of the only workspace.
func (s *Server) WorkspaceNameLookup(context.Context, *emptypb.Empty) (*pb.WorkspaceNameLookupResponse, error) {
	return pb.WorkspaceNameLookupResponse_builder{Username: "atoll-test"}.Build(), nil
}

// checkTokens returns Unauthenticated if the caller does not send the right tokens. Streams do not
// send a token of AuthTokenGet.
func (s *Server) checkTokens(ctx context.Context, withAuthToken bool) error {
	md, _ := metadata.FromIncomingContext(ctx)
	one := func(key string) string { return strings.Join(md.Get(key), "") }
	id, secret := one("x-modal-token-id"), one("x-modal-token-secret")
	switch {
	case id == "" || secret == "":
		return status.Error(codes.Unauthenticated, "Token missing. Could not authenticate client.")
	case !strings.HasPrefix(id, "ak-"):
		return status.Error(codes.Unauthenticated, "Token ID is malformed")
	case id != s.opts.TokenID || secret != s.opts.TokenSecret:
		return status.Error(codes.Unauthenticated, "Token validation failed")
	case withAuthToken && !s.tokens.isValid(one("x-modal-auth-token")):
		return status.Error(codes.Unauthenticated, "x-modal-auth-token is missing, unknown or expired")
	}
	return nil
}

func (t *tokens) isValid(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.expiry[token])
}

// interceptUnary wraps each unary call: it injects faults and checks tokens.
func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := methodName(info.FullMethod)
	if err := s.faults.countCall(method); err != nil {
		return nil, err
	}
	if err := s.checkTokens(ctx, method != "AuthTokenGet"); err != nil {
		return nil, err
	}
	s.environments.noteEnvironment(req)
	resp, err := handle(ctx, req)
	if s.faults.losesAnswer(method) {
		return nil, errCut
	}
	return resp, toStatus(err)
}

// interceptStream wraps each streaming call: it injects faults and checks tokens.
func (s *Server) interceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	method := methodName(info.FullMethod)
	if err := s.faults.countCall(method); err != nil {
		return err
	}
	if err := s.checkTokens(ss.Context(), false); err != nil {
		return err
	}
	cut := s.faults.cutFor(method, ss)
	if cut == nil {
		return toStatus(handle(srv, ss))
	}
	return cut.endError(handle(srv, cut))
}

// methodName returns the last part of a name like "/modal.client.ModalClient/SandboxCreate".
func methodName(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// toStatus adds a code to an error without one: that of the end of its context, or Internal.
func toStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if st := status.FromContextError(err); st.Code() != codes.Unknown {
		return st.Err()
	}
	return status.Error(codes.Internal, err.Error())
}
