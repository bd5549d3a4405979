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

// patience is how long a test waits for what is bound to happen.
var patience = testenv.Scale(30 * time.Second)

// A lab is a server with a client, and an image, with the steps that tests are made
// of. Each step fails the test when it does not succeed.
type lab struct {
	*modal.Client
	t       *testing.T
	server  *fakemodal.Server
	backend atoll.Provider
	raw     pb.ModalClientClient // without what the SDK does besides
	images  *testimage.Registry
	busybox string
	app     *modal.App
}

// newLab starts a server. What is left of it in the end is an error.
func newLab(t *testing.T) *lab {
	t.Helper()
	providertest.CheckLeaks(t)
	return openLab(t)
}

// openLab is newLab for a test that leaves something of its own.
func openLab(t *testing.T) *lab {
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
	l := &lab{t: t, server: server, backend: backend, images: images, busybox: images.Push("busybox:1", testimage.Busybox(t))}
	t.Cleanup(l.close)
	l.connect()
	l.app, err = l.Apps.FromName(l.ctx(), "tests", &modal.AppFromNameParams{CreateIfMissing: true})
	l.must("app", err)
	return l
}

// connect makes the clients. The SDK never closes its connection: it is given one of
// the test's.
func (l *lab) connect() {
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

// close ends the server, after which the backend has no sandboxes.
func (l *lab) close() {
	l.must("close", l.server.Close())
	left, err := l.backend.List(context.Background(), atoll.Filter{})
	l.must("list", err)
	for _, st := range left {
		l.t.Errorf("sandbox %s (%v) is left", st.ID, st.Spec.Labels)
	}
}

// ctx ends with the test, or when it takes too long.
func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), 4*patience)
	l.t.Cleanup(cancel)
	return ctx
}

func (l *lab) must(what string, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
}

// create makes a sandbox of busybox.
func (l *lab) create(params *modal.SandboxCreateParams) *modal.Sandbox {
	l.t.Helper()
	sb, err := l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), params)
	l.must("create", err)
	return sb
}

// result waits until a sandbox has finished.
func (l *lab) result(id string) *pb.GenericResult {
	l.t.Helper()
	resp, err := l.raw.SandboxWait(l.ctx(), pb.SandboxWaitRequest_builder{SandboxId: id, Timeout: float32(patience.Seconds())}.Build())
	l.must("wait", err)
	if resp.GetResult() == nil {
		l.t.Fatalf("sandbox %s has not finished", id)
	}
	return resp.GetResult()
}

// wantCode checks the code of an error, and that it says what it is about.
func wantCode(t *testing.T, what string, err error, want codes.Code, says string) {
	t.Helper()
	if status.Code(err) != want || !strings.Contains(status.Convert(err).Message(), says) {
		t.Errorf("%s: %v, want %s: %s", what, err, want, says)
	}
}

// sh runs a script in a sandbox, and returns all that it printed, and its code.
func (l *lab) sh(sb *modal.Sandbox, script string) (stdout, stderr string, code int) {
	l.t.Helper()
	p, err := sb.Exec(l.ctx(), []string{"sh", "-c", script}, nil)
	l.must("exec", err)
	return l.finish(p)
}

func (l *lab) finish(p *modal.ContainerProcess) (stdout, stderr string, code int) {
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
	out, errs, code := l.finish(p)
	if out != "first second\n/tmp\n" || errs != "all one\n" || code != 7 {
		t.Errorf("got %q, %q, %d", out, errs, code)
	}
	l.must("terminate", sb.Terminate(l.ctx()))
	code, err = sb.Wait(l.ctx())
	if code != 137 || err != nil {
		t.Errorf("wait: %d, %v, want 137", code, err)
	}
}

// What the SDK does itself works, too: tokens, headers, a connection that it keeps.
func TestSDK(t *testing.T) {
	l := openLab(t)
	client, err := modal.NewClientWithOptions(&modal.ClientParams{TokenID: l.server.TokenID(), TokenSecret: l.server.TokenSecret()})
	l.must("client", err)
	defer client.Close()
	app, err := client.Apps.FromName(l.ctx(), "tests", nil)
	l.must("app", err)
	if app.AppID != l.app.AppID {
		t.Errorf("app %s, want %s", app.AppID, l.app.AppID)
	}
	if _, err := client.Apps.FromName(l.ctx(), "none", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("app that is not there: %v", err)
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
		t.Errorf("secret that is not there: %v", err)
	}
	_, err := l.Secrets.FromName(l.ctx(), "named", &modal.SecretFromNameParams{RequiredKeys: []string{"a", "c"}})
	if err == nil || !strings.Contains(err.Error(), "Secret is missing key(s): c") {
		t.Errorf("key that is not there: %v", err)
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
