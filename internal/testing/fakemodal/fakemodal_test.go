//go:build linux

package fakemodal_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakemodal"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// testTimeout limits the time that a test waits for an event.
var testTimeout = testenv.Scale(30 * time.Second)

// A testLab is a server with a client and an image. Its methods fail the test if a step fails.
type testLab struct {
	*modal.Client
	t       *testing.T
	server  *fakemodal.Server
	backend atoll.Provider
	raw     pb.ModalClientClient // without the SDK
	images  *testimage.Registry
	busybox string
	app     *modal.App
}

// newLab starts a server. The test fails if the server leaves something behind.
func newLab(t *testing.T) *testLab {
	t.Helper()
	providertest.CheckLeaks(t)
	return openTestLab(t)
}

// openTestLab is newLab for a test that leaves something behind itself.
func openTestLab(t *testing.T) *testLab {
	t.Helper()
	if err := gvisor.Static("/proc/self/exe"); err != nil {
		t.Skipf("gVisor needs a static program: %v", err)
	}
	images := testimage.Serve(t)
	runDir, err := os.MkdirTemp("", "fakemodal-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runDir) })
	backend, err := gvisor.New(gvisor.Options{Dir: filepath.Join(t.TempDir(), "state"), RunDir: runDir, Cgroup: "fakemodal-"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() })
	if probe := atoll.ProbeProvider(t.Context(), backend); !probe.OK {
		t.Skipf("gVisor does not work here: %s; %s", probe.Reason, probe.Fix)
	}
	server, err := fakemodal.New(fakemodal.Options{Backend: backend, Dir: filepath.Join(t.TempDir(), "modal")})
	if err != nil {
		t.Fatal(err)
	}
	l := &testLab{t: t, server: server, backend: backend, images: images, busybox: images.Push("busybox:1", testimage.Busybox(t))}
	t.Cleanup(l.closeServer)
	l.connect()
	l.app, err = l.Apps.FromName(l.ctx(), "tests", &modal.AppFromNameParams{CreateIfMissing: true})
	l.must("app", err)
	return l
}

// connect creates the clients. The SDK never closes its connection, so it gets one that the test
// closes.
func (l *testLab) connect() {
	l.t.Helper()
	l.t.Setenv("HOME", l.t.TempDir())
	l.t.Setenv("MODAL_SERVER_URL", l.server.URL())
	show := func(ctx context.Context, token string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "x-modal-token-id", l.server.TokenID(), "x-modal-token-secret", l.server.TokenSecret(), "x-modal-auth-token", token)
	}
	var token string
	conn, err := grpc.NewClient(strings.TrimPrefix(l.server.URL(), "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return call(show(ctx, token), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(show(ctx, token), desc, cc, method, opts...)
		}))
	l.must("connect", err)
	l.t.Cleanup(func() { conn.Close() })
	l.raw = pb.NewModalClientClient(conn)
	resp, err := l.raw.AuthTokenGet(l.ctx(), &pb.AuthTokenGetRequest{})
	l.must("token", err)
	token = resp.GetToken()
	l.Client, err = modal.NewClientWithOptions(&modal.ClientParams{ControlPlaneClient: l.raw})
	l.must("client", err)
	l.t.Cleanup(l.Client.Close)
}

// closeServer closes the server and checks that the backend has no sandboxes left.
func (l *testLab) closeServer() {
	l.must("close", l.server.Close())
	left, err := l.backend.List(context.Background(), atoll.Filter{})
	l.must("list", err)
	for _, st := range left {
		l.t.Errorf("Close left sandbox %s (%v)", st.ID, st.Spec.Labels)
	}
}

// ctx returns a context that ends with the test, or after testTimeout.
func (l *testLab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), 4*testTimeout)
	l.t.Cleanup(cancel)
	return ctx
}

func (l *testLab) must(what string, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
}

// create creates a sandbox of busybox.
func (l *testLab) create(params *modal.SandboxCreateParams) *modal.Sandbox {
	l.t.Helper()
	sb, err := l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), params)
	l.must("create", err)
	return sb
}

// awaitResult waits until a sandbox has finished and returns its result.
func (l *testLab) awaitResult(id string) *pb.GenericResult {
	l.t.Helper()
	resp, err := l.raw.SandboxWait(l.ctx(), pb.SandboxWaitRequest_builder{SandboxId: id, Timeout: float32(testTimeout.Seconds())}.Build())
	l.must("wait", err)
	if resp.GetResult() == nil {
		l.t.Fatalf("sandbox %s did not finish", id)
	}
	return resp.GetResult()
}

// wantCode checks the code of an error and that its message contains says.
func wantCode(t *testing.T, what string, err error, want codes.Code, says string) {
	t.Helper()
	if status.Code(err) != want || !strings.Contains(status.Convert(err).Message(), says) {
		t.Errorf("%s: %v, want %s: %s", what, err, want, says)
	}
}

// runScript runs a script in a sandbox and returns its outputs and its code.
func (l *testLab) runScript(sb *modal.Sandbox, script string) (stdout, stderr string, code int) {
	l.t.Helper()
	p, err := sb.Exec(l.ctx(), []string{"sh", "-c", script}, nil)
	l.must("exec", err)
	return l.awaitExit(p)
}

func (l *testLab) awaitExit(p *modal.ContainerProcess) (stdout, stderr string, code int) {
	l.t.Helper()
	out, err := io.ReadAll(p.Stdout)
	l.must("stdout", err)
	errs, err := io.ReadAll(p.Stderr)
	l.must("stderr", err)
	code, err = p.Wait(l.ctx())
	l.must("wait", err)
	return string(out), string(errs), code
}

func TestExec(t *testing.T) {
	l := newLab(t)
	sb := l.create(&modal.SandboxCreateParams{Env: map[string]string{"OF": "all"}})
	p, err := sb.Exec(l.ctx(), []string{"sh", "-c", "cat; echo $OF $MINE >&2; pwd; exit 7"}, &modal.SandboxExecParams{
		Env: map[string]string{"MINE": "one"}, Workdir: "/tmp",
	})
	l.must("exec", err)
	for _, text := range []string{"first ", "second\n"} {
		if _, err := io.WriteString(p.Stdin, text); err != nil {
			t.Fatal(err)
		}
	}
	l.must("close stdin", p.Stdin.Close())
	out, errs, code := l.awaitExit(p)
	if out != "first second\n/tmp\n" || errs != "all one\n" || code != 7 {
		t.Errorf("got %q, %q, %d", out, errs, code)
	}
	l.must("terminate", sb.Terminate(l.ctx()))
	code, err = sb.Wait(l.ctx())
	if code != 137 || err != nil {
		t.Errorf("wait: %d, %v, want 137", code, err)
	}
}

// The SDK works with tokens, metadata and its own connection.
func TestSDK(t *testing.T) {
	l := openTestLab(t)
	client, err := modal.NewClientWithOptions(&modal.ClientParams{TokenID: l.server.TokenID(), TokenSecret: l.server.TokenSecret()})
	l.must("client", err)
	defer client.Close()
	app, err := client.Apps.FromName(l.ctx(), "tests", nil)
	l.must("app", err)
	if app.AppID != l.app.AppID {
		t.Errorf("app %s, want %s", app.AppID, l.app.AppID)
	}
	if _, err := client.Apps.FromName(l.ctx(), "none", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("missing app: %v", err)
	}
	if _, err := client.Apps.FromName(l.ctx(), "tests", &modal.AppFromNameParams{Environment: "other"}); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("app in another environment: %v", err)
	}
	_, err = modal.NewClientWithOptions(&modal.ClientParams{TokenID: l.server.TokenID(), TokenSecret: "as-wrong"})
	if err == nil || !strings.Contains(err.Error(), "Token validation failed") {
		t.Errorf("wrong secret: %v", err)
	}
	_, err = modal.NewClientWithOptions(&modal.ClientParams{TokenID: "nonsense", TokenSecret: "as-wrong"})
	if err == nil || !strings.Contains(err.Error(), "Token ID is malformed") {
		t.Errorf("no token id: %v", err)
	}
}

func TestSecrets(t *testing.T) {
	l := newLab(t)
	l.must("set", l.server.SetSecret("", "named", map[string]string{"a": "1", "b": "2"}))
	if _, err := l.Secrets.FromName(l.ctx(), "none", nil); err == nil || !strings.Contains(err.Error(), "Secret 'none' not found") {
		t.Errorf("missing secret: %v", err)
	}
	_, err := l.Secrets.FromName(l.ctx(), "named", &modal.SecretFromNameParams{RequiredKeys: []string{"a", "c"}})
	if err == nil || !strings.Contains(err.Error(), "Secret is missing key(s): c") {
		t.Errorf("missing key: %v", err)
	}
	named, err := l.Secrets.FromName(l.ctx(), "named", &modal.SecretFromNameParams{RequiredKeys: []string{"a"}})
	l.must("named", err)
	later, err := l.Secrets.FromMap(l.ctx(), map[string]string{"b": "3"}, nil)
	l.must("later", err)
	sb := l.create(&modal.SandboxCreateParams{Secrets: []*modal.Secret{named, later}, Command: []string{"sh", "-c", "echo $a $b $MODAL_SANDBOX_ID"}})
	out, err := io.ReadAll(sb.Stdout)
	if want := "1 3 " + sb.SandboxID + "\n"; string(out) != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}
