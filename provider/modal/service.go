package modal

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
)

// A service has the clients of Modal. It owns the connection, which the SDK's client shares,
// because that never closes a connection of its own. Calls that the SDK lacks use the protocol
// directly.
type service struct {
	opts *Options
	conn *grpc.ClientConn
	pb   pb.ModalClientClient // the protocol

	opening sync.Mutex
	tokens  *sdk.AuthTokenManager

	mu      sync.Mutex
	sdk     *sdk.Client // nil until it is open
	envName string      // name of the environment, once it is open
	closed  bool
}

// sdkVersion is the version of the SDK that is in this program.
var sdkVersion = func() string {
	const module = "github.com/modal-labs/libmodal/modal-go"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return dep.Version
			}
		}
	}
	return ""
}()

// The retry policy of calls: a request that the service did not accept is sent again.
const retryPolicy = `{"methodConfig":[{"name":[{"service":"modal.client.ModalClient"}],"retryPolicy":{
	"maxAttempts":4,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// messageSize is the size of the longest message, as the SDK has it.
const messageSize = 100 << 20

// A connection is closed if sent data is not acknowledged within ackTimeout. An idle connection
// is pinged every pingInterval, as rarely as every server allows.
const (
	pingInterval = 6 * time.Minute
	ackTimeout   = 20 * time.Second
)

func newService(opts *Options) (*service, error) {
	creds, target := credentials.NewTLS(&tls.Config{}), opts.ServerURL
	if rest, ok := strings.CutPrefix(target, "http://"); ok {
		creds, target = insecure.NewCredentials(), rest
	} else if rest, ok := strings.CutPrefix(target, "https://"); ok {
		target = rest
	} else {
		return nil, fmt.Errorf("server URL %q: write it like %s", target, DefaultServerURL)
	}
	s := &service{opts: opts}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(creds), grpc.WithDefaultServiceConfig(retryPolicy),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageSize), grpc.MaxCallSendMsgSize(messageSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: ackTimeout}),
		grpc.WithUnaryInterceptor(s.interceptCall), grpc.WithStreamInterceptor(s.interceptStream),
	)
	if err != nil {
		return nil, err
	}
	s.conn, s.pb = conn, logFilter{pb.NewModalClientClient(conn)}
	return s, nil
}

// noToken is the error text for a missing token.
const noToken = "no token: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET (modal.token_id, modal.token_secret), or run modal token new"

// open makes the service check the account, unless that was done. Kinds: ErrDenied,
// ErrUnavailable, ErrInvalid (the environment must be named), and the errors of ctx.
func (s *service) open(ctx context.Context) error {
	if s.opts.TokenID == "" || s.opts.TokenSecret == "" {
		return atoll.Errorf("open", "modal", atoll.ErrDenied, noToken)
	}
	if client, err := s.sdkClient(); client != nil || err != nil {
		return err
	}
	opened := make(chan error, 1)
	go func() { opened <- s.connectClient() }() // the SDK takes no context for it
	select {
	case err := <-opened:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connectClient creates the SDK's client on the first call.
func (s *service) connectClient() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if client, err := s.sdkClient(); client != nil || err != nil {
		return err
	}
	tokens := sdk.NewAuthTokenManager(s.pb)
	if err := tokens.Start(context.Background()); err != nil {
		return err
	}
	s.mu.Lock()
	s.tokens = tokens // for all later calls, including those of the client
	s.mu.Unlock()
	in, err := s.resolveEnvironment(context.Background())
	if err != nil {
		tokens.Stop()
		return err
	}
	params := &sdk.ClientParams{TokenID: s.opts.TokenID, TokenSecret: s.opts.TokenSecret, Environment: in, ControlPlaneClient: s.pb}
	setZero(&params.Config)
	client, err := sdk.NewClientWithOptions(params)
	if err != nil {
		tokens.Stop()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		client.Close()
		tokens.Stop()
		return errClosed
	}
	s.sdk, s.envName = client, in
	return nil
}

// resolveEnvironment returns the name of the environment. If the options have none, it asks the
// service for the default one: the SDK would use MODAL_ENVIRONMENT and the service its default,
// and objects of the one do not exist in the other.
func (s *service) resolveEnvironment(ctx context.Context) (string, error) {
	if s.opts.Environment != "" {
		return s.opts.Environment, nil
	}
	resp, err := s.pb.EnvironmentGetOrCreate(ctx, &pb.EnvironmentGetOrCreateRequest{}) // it creates none, and returns the default one
	if err != nil {
		return "", err
	}
	name := resp.GetMetadata().GetName()
	if name == "" {
		return "", atoll.Errorf("open", "modal", atoll.ErrInvalid, "Modal does not say which environment is the default one: set MODAL_ENVIRONMENT (modal.environment)")
	}
	return name, nil
}

// environmentName returns the name of the environment, once the service is open.
func (s *service) environmentName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.envName
}

// setZero sets p to a zero value of a type that cannot be named here, such as the SDK's
// configuration. With an empty configuration the SDK does not read ~/.modal.toml: the settings may
// select another table of it, and the SDK would need a home directory.
func setZero[T any](p **T) { *p = new(T) }

var errClosed = atoll.Errorf("open", "modal", atoll.ErrUnavailable, "the provider is closed")

// sdkClient returns the SDK's client; nil until the service is open.
func (s *service) sdkClient() (*sdk.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	return s.sdk, nil
}

func (s *service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.sdk != nil {
		s.sdk.Close()
		s.tokens.Stop()
	}
	_ = s.conn.Close()
}

// withMetadata adds the metadata that every call needs.
func (s *service) withMetadata(ctx context.Context, method string) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx,
		"x-modal-client-type", strconv.Itoa(int(pb.ClientType_CLIENT_TYPE_LIBMODAL_GO)),
		"x-modal-client-version", "1.0.0", // version of the protocol, as the SDK has it
		"x-modal-libmodal-version", "modal-go/"+sdkVersion,
		"x-modal-token-id", s.opts.TokenID, "x-modal-token-secret", s.opts.TokenSecret,
		"x-idempotency-key", atoll.NewID(), "x-retry-attempt", "0",
	)
	s.mu.Lock()
	tokens := s.tokens
	s.mu.Unlock()
	if tokens == nil || strings.HasSuffix(method, authMethod) {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "x-modal-auth-token", tokens.GetCurrentToken())
}

// callTimeout bounds a call. Long polls take less: the service answers them within the time
// that they name.
const callTimeout = 2 * time.Minute

func (s *service) interceptCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := invoke(s.withMetadata(ctx, method), method, req, reply, cc, opts...)
	if isCode(err, codes.Unauthenticated) && s.renewToken(ctx, method) {
		err = invoke(s.withMetadata(ctx, method), method, req, reply, cc, opts...)
	}
	return err
}

// renewToken gets a new auth token: on a machine that slept, the token may not have been
// renewed in time.
func (s *service) renewToken(ctx context.Context, method string) bool {
	s.mu.Lock()
	tokens := s.tokens
	s.mu.Unlock()
	if tokens == nil || strings.HasSuffix(method, authMethod) {
		return false
	}
	_, err := tokens.FetchToken(ctx)
	return err == nil
}

const authMethod = "/AuthTokenGet"

func (s *service) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(s.withMetadata(ctx, method), desc, cc, method, opts...)
}

// logFilter answers requests for logs that nobody reads with an empty log: the SDK requests
// both outputs of each sandbox that it gets, as long as it runs.
type logFilter struct{ pb.ModalClientClient }

// logsWanted is the key of the context of calls whose logs are read.
type logsWanted struct{}

func (u logFilter) SandboxGetLogs(ctx context.Context, req *pb.SandboxGetLogsRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[pb.TaskLogsBatch], error) {
	if ctx.Value(logsWanted{}) == nil {
		return &emptyLog{}, nil
	}
	return u.ModalClientClient.SandboxGetLogs(ctx, req, opts...)
}

// emptyLog is a log at its end.
type emptyLog struct {
	grpc.ServerStreamingClient[pb.TaskLogsBatch]
	told bool
}

func (e *emptyLog) Recv() (*pb.TaskLogsBatch, error) {
	if e.told {
		return nil, io.EOF
	}
	e.told = true
	return pb.TaskLogsBatch_builder{Eof: true}.Build(), nil
}

// cache caches values by name.
type cache[T any] struct {
	asking keymutex.Locks
	mu     sync.Mutex
	have   map[string]T
}

// getOrFetch returns the cached value of the name, or calls ask for it. Concurrent calls for a
// name wait for the first one, as long as their ctx allows.
func (c *cache[T]) getOrFetch(ctx context.Context, name string, ask func() (T, error)) (v T, err error) {
	release, err := c.asking.Lock(ctx, name)
	if err != nil {
		return v, err
	}
	defer release()
	c.mu.Lock()
	v, ok := c.have[name]
	c.mu.Unlock()
	if ok {
		return v, nil
	}
	if v, err = ask(); err != nil {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have == nil {
		c.have = map[string]T{}
	}
	c.have[name] = v
	return v, nil
}

// cachedValues returns all cached values.
func (c *cache[T]) cachedValues() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.have))
}

// forgetAll clears the cache.
func (c *cache[T]) forgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.have)
}
