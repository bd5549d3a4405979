package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A fakeBackend has sandboxes in which no process can start.
type fakeBackend struct {
	createErr, startErr error

	mu      sync.Mutex
	specs   []*atoll.Spec
	cmds    []*atoll.Command
	removed []string
}

func (b *fakeBackend) CreateSandbox(_ context.Context, spec *atoll.Spec) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.specs = append(b.specs, spec)
	return b.createErr
}

func (b *fakeBackend) StartProcess(_ context.Context, _ *atoll.Spec, cmd *atoll.Command, _ Stdio) (Process, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cmds = append(b.cmds, cmd)
	return nil, b.startErr
}

func (b *fakeBackend) StopSandbox(context.Context, string) error { return nil }

func (b *fakeBackend) RemoveSandbox(_ context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed = append(b.removed, id)
	return nil
}

// newProvider returns the provider of b, which the end of the test closes.
func newProvider(t *testing.T, b Backend) atoll.Provider {
	t.Helper()
	p, err := NewProvider(atoll.Info{Name: "fake", Isolation: atoll.IsolationNone}, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// The caps of a backend's provider are those that NewProvider can keep.
func TestBackendCaps(t *testing.T) {
	for name, caps := range map[string]atoll.Caps{"files": {Files: true}, "survives": {Survives: true}, "publish": {Publish: true}} {
		_, err := NewProvider(atoll.Info{Name: "fake", Caps: caps}, &fakeBackend{}, nil)
		if !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "cap "+name) {
			t.Errorf("NewProvider with cap %s: %v", name, err)
		}
	}
	got := newProvider(t, &fakeBackend{}).Info().Caps
	if want := (atoll.Caps{Durable: atoll.DurableNone, Extend: true}); got != want {
		t.Errorf("caps %+v, want %+v", got, want)
	}
}

// A Create that the backend refuses leaves nothing, and its error has an op, an id and a kind.
func TestBackendRefusesSandbox(t *testing.T) {
	b := &fakeBackend{createErr: errors.New("no space")}
	p := newProvider(t, b)
	_, err := p.Create(t.Context(), &atoll.Spec{Name: "web"})
	var e *atoll.Error
	if !errors.As(err, &e) || e.Op != "create" || e.ID == "" || e.Kind != atoll.ErrInternal || !strings.Contains(err.Error(), "no space") {
		t.Errorf("Create: %v", err)
	}
	if len(b.removed) != 1 || b.removed[0] != b.specs[0].ID {
		t.Errorf("removed %q, want the sandbox", b.removed)
	}
	b.createErr = nil
	if _, err := p.Create(t.Context(), &atoll.Spec{Name: "web"}); err != nil {
		t.Errorf("the name is not free: %v", err)
	}
}

// A backend gets complete commands, and clean paths that cannot lead out of a directory.
func TestBackendGetsCompleteCommands(t *testing.T) {
	b := &fakeBackend{startErr: atoll.ErrExecFailed}
	spec := &atoll.Spec{Workdir: "/work/../../../place", Env: []string{"A=spec", "B=spec"}}
	sb, err := newProvider(t, b).Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := &atoll.Command{Args: []string{"cat"}, Env: []string{"B=command"}, Dir: "x/../..", Stdin: strings.NewReader("")}
	if _, err := sb.Exec(t.Context(), cmd); !errors.Is(err, atoll.ErrExecFailed) {
		t.Errorf("Exec: %v", err)
	}
	if got := b.specs[0].Workdir; got != "/place" {
		t.Errorf("the work directory is %q", got)
	}
	if got := b.cmds[0]; got.Dir != "/" || fmt.Sprint(got.Env) != "[A=spec B=command]" || !got.OpenStdin || got.Stdin != nil {
		t.Errorf("the command is %+v", got)
	}
	if st, err := sb.Status(t.Context()); err != nil || st.Spec.Workdir != spec.Workdir {
		t.Errorf("the status has work directory %q, %v", st.Spec.Workdir, err)
	}
}

// awaitFailure waits until the sandbox has failed.
func awaitFailure(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	deadline := time.Now().Add(testenv.Scale(10 * time.Second))
	for {
		st, err := sb.Status(t.Context())
		if err == nil && st.State == atoll.StateFailed && strings.Contains(st.Reason, "lost") {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the state is %s (%s), %v; want it failed", st.State, st.Reason, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// A sandbox that its backend has lost fails.
func TestBackendLosesSandbox(t *testing.T) {
	b := &fakeBackend{startErr: atoll.ErrNotFound}
	p, err := NewProvider(atoll.Info{Name: "fake", Caps: atoll.Caps{Restart: true}}, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}}); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Exec: %v", err)
	}
	awaitFailure(t, sb)
	if err := sb.Start(t.Context()); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("Start: %v", err)
	}
}

// serveFakeBackend is the main function of the program atoll-backend. It loses each sandbox at once.
func serveFakeBackend() int {
	line, err := bufio.NewReader(os.Stdin).ReadBytes('\n')
	var start Start
	if err == nil {
		err = json.Unmarshal(line, &start)
	}
	var l net.Listener
	if err == nil {
		l, err = net.Listen("unix", start.Socket)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tty := strings.Contains(string(start.Settings), `"count":1`)
	routes := http.NewServeMux()
	routes.HandleFunc("GET /v1/info", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"name":"backend","isolation":"vm","caps":{"tty":%v}}`, tty)
	})
	routes.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	routes.HandleFunc("/v1/sandboxes/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"kind":"not found","message":"it is gone"}`)
	})
	go func() { _ = http.Serve(l, routes) }()
	fmt.Println(`{"protocol":1,"backend":true}`)
	_, _ = io.Copy(io.Discard, os.Stdin)
	l.Close()
	return 0
}

// A program that says so is a backend over HTTP.
func TestHTTPBackend(t *testing.T) {
	p := open(t, options(t, "backend", settings{}))
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateRunning || st.Caps != p.Info().Caps {
		t.Errorf("Status: %+v, %v", st, err)
	}
	if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"\xff"}}); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Exec of a command that is not UTF-8: %v", err)
	}
	if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}}); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("Exec: %v", err)
	}
	awaitFailure(t, sb)
	if err := sb.Remove(t.Context()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if p, err := Open(t.Context(), options(t, "backend", settings{Count: 1})); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Open with cap tty: %v, %v", p, err)
	}
}
