package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// removeBehind removes the sandbox of a session without telling the layer.
func removeBehind(t *testing.T, box atoll.Provider, id string) {
	t.Helper()
	sb, err := box.Get(t.Context(), id)
	if err == nil {
		err = sb.Remove(t.Context(), atoll.RemoveVolumes())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// replaced checks that whoever opens the session again is told, and has the same.
func replaced(t *testing.T, p atoll.Provider, before session.Opened) session.Opened {
	t.Helper()
	o := mustOpen(t, p, workflow(before.Scope.ID))
	if o.Opening != session.OpeningReplaced || o.Sandbox == before.Sandbox || !strings.Contains(o.Note, "without the files") {
		t.Errorf("opened again it is %s (%q), want it replaced", o.Opening, o.Note)
	}
	if !slices.Equal(o.Spec.Env, before.Spec.Env) {
		t.Errorf("it is made from %+v, want what it was made from before, %+v", o.Spec, before.Spec)
	}
	return o
}

// Whoever opens a session whose sandbox has gone is told, whoever has noticed before.
func TestGoneIsTold(t *testing.T) {
	noticed := func(t *testing.T, s session.Store) {
		eventually(t, func() error {
			x, err := s.FindSession(t.Context(), atoll.DefaultProject, "workflow_w_sandbox")
			if err == nil && x.State != session.StateGone {
				err = fmt.Errorf("the session is %s", x.State)
			}
			return err
		})
	}
	for name, notice := range map[string]func(t *testing.T, box atoll.Provider, dir string){
		"nobody": func(*testing.T, atoll.Provider, string) {},
		"who lists them": func(t *testing.T, box atoll.Provider, dir string) {
			p := around(box, dir, session.Options{})
			defer p.Close()
			if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) > 0 {
				t.Errorf("Sessions = %+v, %v", all, err)
			}
		},
		"a server": func(t *testing.T, box atoll.Provider, dir string) {
			p, s := quickly(box, dir, session.Options{Server: true}), openStore(dir)
			defer p.Close()
			defer s.Close()
			noticed(t, s)
			if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) > 0 {
				t.Errorf("Sessions = %+v, %v", all, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			box, dir := surviving(backend(t, mock.Options{})), t.TempDir()
			p := around(box, dir, session.Options{IdleTimeout: atoll.Never})
			defer p.Close()
			spec := workflow("w")
			spec.Sandbox.Env = []string{"COLOUR=blue"}
			o := mustOpen(t, p, spec)
			removeBehind(t, box, o.Sandbox)
			notice(t, box, dir)
			o = replaced(t, p, o)
			removeBehind(t, box, o.Sandbox)
			notice(t, box, dir)
			scope := session.Scope{Kind: session.ScopeWorkflow, ID: "w"}
			if _, err := session.EndScope(t.Context(), p, "", scope); err != nil {
				t.Errorf("EndScope: %v", err)
			}
			if again := mustOpen(t, p, workflow("w")); again.Opening != session.OpeningMade || again.Note != "" || len(again.Spec.Env) > 0 {
				t.Errorf("after the end of its scope it is %+v", again)
			}
		})
	}
}

// A session that nobody uses ends, and whoever comes back is told.
func TestIdleIsTold(t *testing.T) {
	p := quickly(backend(t, mock.Options{}), t.TempDir(), session.Options{IdleTimeout: atoll.Duration(100 * time.Millisecond)})
	defer p.Close()
	o := mustOpen(t, p, workflow("w"))
	eventually(t, func() error { return counts(t.Context(), p, 0, 0) })
	replaced(t, p, o)
}

// A new sandbox that cannot be made does not make anybody forget the old one.
func TestReplacementFails(t *testing.T) {
	var broken atomic.Bool
	box := backend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "create" && broken.Load() {
			return atoll.Errorf(op, "", atoll.ErrExhausted, "there are too many")
		}
		return nil
	}})
	p := around(box, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflow("w"))
	removeBehind(t, box, o.Sandbox)
	broken.Store(true)
	for range 2 {
		if _, err := p.OpenSession(t.Context(), workflow("w")); atoll.KindOf(err) != atoll.ErrExhausted {
			t.Errorf("OpenSession: %v", err)
		}
	}
	broken.Store(false)
	replaced(t, p, o)
}

// That a session was there is remembered for days, and not for ever.
func TestForgotten(t *testing.T) {
	box, dir := backend(t, mock.Options{}), t.TempDir()
	p, s := around(box, dir, session.Options{}), openStore(dir)
	defer s.Close()
	o := mustOpen(t, p, workflow("w"))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	removeBehind(t, box, o.Sandbox)
	age := func(days int) {
		x, err := s.FindSession(t.Context(), o.Project, o.Key)
		if err == nil {
			x.State, x.Holder, x.Used = session.StateGone, "", time.Now().Add(-time.Duration(days)*24*time.Hour)
			err = s.UpdateSession(t.Context(), x)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	age(6)
	p = quickly(box, dir, session.Options{Server: true})
	defer p.Close()
	time.Sleep(200 * time.Millisecond) // some looks at it
	age(8)
	eventually(t, func() error {
		if _, err := s.FindSession(t.Context(), o.Project, o.Key); atoll.KindOf(err) != atoll.ErrNotExist {
			return fmt.Errorf("FindSession: %v, want none", err)
		}
		return nil
	})
}

// A hider has no sandboxes while it is away, as an engine that another one stands in
// for.
type hider struct {
	atoll.ProviderLayer
	away atomic.Bool
}

func (h *hider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if h.away.Load() {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return h.Provider.Get(ctx, id)
}

func (h *hider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if h.away.Load() {
		return nil, nil
	}
	return h.Provider.List(ctx, f)
}

// A sandbox that is there again is its session's.
func TestBack(t *testing.T) {
	box := &hider{ProviderLayer: atoll.ProviderLayer{Provider: backend(t, mock.Options{})}}
	p := around(box, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflow("w"))
	box.away.Store(true)
	if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("Sessions = %+v, %v, want none", all, err)
	}
	box.away.Store(false)
	if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) != 1 || all[0].State != session.StateOpen {
		t.Errorf("Sessions = %+v, %v, want the one that is back", all, err)
	}
	if again := mustOpen(t, p, workflow("w")); again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound {
		t.Errorf("when it is back it is %+v", again)
	}
}

// Nobody's files are thrown away for what may go away by itself.
func TestStartFails(t *testing.T) {
	for kind, want := range map[atoll.Kind]session.Opening{
		atoll.ErrUnavailable: "", atoll.ErrExhausted: "", atoll.ErrConflict: "", atoll.ErrTimeout: "", atoll.ErrDenied: "",
		atoll.ErrInternal: session.OpeningReplaced, atoll.ErrUnsupported: session.OpeningReplaced, atoll.ErrNotExist: session.OpeningReplaced,
	} {
		var broken atomic.Bool
		p := around(backend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
			if op == "start" && broken.Load() {
				return atoll.Errorf(op, "", kind, "the port is taken")
			}
			return nil
		}}), t.TempDir(), session.Options{})
		defer p.Close()
		first := mustOpen(t, p, workflow("w"))
		sb, err := p.Get(t.Context(), first.Sandbox)
		if err == nil {
			err = sb.Stop(t.Context(), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		o, err := p.OpenSession(t.Context(), workflow("w"))
		if want == "" && atoll.KindOf(err) != kind || want != "" && (err != nil || o.Opening != want || !strings.Contains(o.Note, "the port is taken")) {
			t.Errorf("OpenSession when the start fails with %s: %+v, %v, want %q", kind, o, err, want)
		}
		broken.Store(false)
		if again := mustOpen(t, p, workflow("w")); (again.Sandbox == first.Sandbox) != (want == "") {
			t.Errorf("after a start that failed with %s there is %+v", kind, again)
		}
	}
}

// A sandbox that is just being made again is not one of no use.
func TestRemaking(t *testing.T) {
	var remaking atomic.Bool
	box := backend(t, mock.Options{})
	p := around(statuses{box, func(st *atoll.Status) {
		if remaking.Load() {
			st.State, st.Reason = atoll.StateCreating, "it is being rebuilt"
		}
	}}, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflow("w"))
	remaking.Store(true)
	if _, err := p.OpenSession(t.Context(), workflow("w")); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("OpenSession meanwhile: %v", err)
	}
	remaking.Store(false)
	if again := mustOpen(t, p, workflow("w")); again.Sandbox != o.Sandbox {
		t.Errorf("it was replaced: %+v", again)
	}
}

// statuses are a provider whose sandboxes have others than they have.
type statuses struct {
	atoll.Provider
	change func(*atoll.Status)
}

func (p statuses) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	spec = spec.Clone()
	spec.IdleStop, spec.IdleRemove = 0, false
	return p.sandbox(p.Provider.Create(ctx, spec))
}

func (p statuses) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return p.sandbox(p.Provider.Get(ctx, id))
}

func (p statuses) sandbox(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return statusSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

func (p statuses) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := p.Provider.List(ctx, f)
	for i := range all {
		p.change(&all[i])
	}
	return all, err
}

type statusSandbox struct {
	atoll.SandboxLayer
	p statuses
}

func (s statusSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	s.p.change(&st)
	return st, err
}

// surviving is a provider whose sandboxes are no program's.
func surviving(p atoll.Provider) atoll.Provider {
	return statuses{p, func(st *atoll.Status) { st.Caps.Survives = true }}
}

// minding is one that minds by itself who uses them.
func minding(p atoll.Provider) atoll.Provider {
	return statuses{p, func(st *atoll.Status) { st.Caps.Survives, st.Caps.IdleStop = true, true }}
}

// However many sessions there are, to look after them costs one call.
func TestManySessions(t *testing.T) {
	const many = 50
	var counting atomic.Bool
	var lists, others atomic.Int32
	box := minding(backend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		switch {
		case !counting.Load():
		case op == "list":
			lists.Add(1)
		default:
			others.Add(1)
		}
		return nil
	}}))
	dir := t.TempDir()
	p := around(box, dir, session.Options{})
	defer p.Close()
	var gone session.Opened
	for i := range many {
		gone = mustOpen(t, p, workflow(fmt.Sprint("w", i)))
	}
	counting.Store(true)
	server := quickly(box, dir, session.Options{Server: true})
	defer server.Close()
	eventually(t, func() error {
		if lists.Load() < 5 {
			return errors.New("nobody has looked five times")
		}
		return nil
	})
	if n := others.Load(); n > 0 {
		t.Errorf("besides, there were %d calls", n)
	}
	counting.Store(false)
	removeBehind(t, box, gone.Sandbox)
	s := openStore(dir)
	defer s.Close()
	eventually(t, func() error {
		if all, err := s.Sessions(t.Context(), ""); err != nil || all[many-1].State != session.StateGone {
			return fmt.Errorf("nobody has noticed: %v", err)
		}
		return nil
	})
}

// Who opens a session uses its sandbox, and finds out if it has just ended.
func TestOpeningIsUse(t *testing.T) {
	asked := &asking{ProviderLayer: atoll.ProviderLayer{Provider: minding(backend(t, mock.Options{}))}}
	p := around(asked, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflow("w"))
	for i := range int32(3) {
		if n := asked.n.Load(); n < i {
			t.Errorf("it was opened again %d times, and asked for something %d times", i, n)
		}
		mustOpen(t, p, workflow("w"))
	}
	asked.ends.Store(true) // when it is asked again
	if again := mustOpen(t, p, workflow("w")); again.Sandbox != o.Sandbox || again.Opening != session.OpeningRestarted {
		t.Errorf("one that has just ended is %+v", again)
	}
}

// asking are a provider which counts how often its sandboxes are asked for their
// processes, and of which one may end then.
type asking struct {
	atoll.ProviderLayer
	n    atomic.Int32
	ends atomic.Bool
}

func (p *asking) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return askedSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

type askedSandbox struct {
	atoll.SandboxLayer
	p *asking
}

func (s askedSandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	s.p.n.Add(1)
	if s.p.ends.Swap(false) {
		if err := s.Stop(ctx, 0); err != nil {
			return nil, err
		}
	}
	return atoll.Processes(ctx, s.Sandbox)
}

// Who is attached to the main process uses the sandbox.
func TestAttached(t *testing.T) {
	idle := testenv.Scale(500 * time.Millisecond) // in which a sandbox is used for the first time
	p := quickly(backend(t, mock.Options{}), t.TempDir(), session.Options{IdleTimeout: atoll.Duration(idle)})
	defer p.Close()
	spec := workflow("w")
	spec.Sandbox.Cmd, spec.Sandbox.OpenStdin = []string{"cat"}, true
	sb, err := p.Get(t.Context(), mustOpen(t, p, spec).Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	main, err := sb.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- main.Attach(ctx, &atoll.Attachment{Stdout: io.Discard}) }()
	time.Sleep(2 * idle)
	if err := counts(t.Context(), p, 1, 1); err != nil {
		t.Errorf("while somebody is attached: %v", err)
	}
	cancel()
	<-done
	eventually(t, func() error { return counts(t.Context(), p, 0, 0) })
}

// A workflow that is named later ends its agents' sessions, too.
func TestWorkflowIsNamedLater(t *testing.T) {
	p := around(backend(t, mock.Options{}), t.TempDir(), session.Options{})
	defer p.Close()
	agent := &session.Spec{Scope: session.Scope{Kind: session.ScopeAgent, ID: "a"}}
	mustOpen(t, p, agent)
	for _, id := range []string{"w", "another"} {
		agent.Workflow = id
		if o := mustOpen(t, p, agent); o.Workflow != "w" {
			t.Errorf("opened in %s its workflow is %q", id, o.Workflow)
		}
	}
	closed, err := session.EndScope(t.Context(), p, "", session.Scope{Kind: session.ScopeWorkflow, ID: "w"})
	if err != nil || !slices.Equal(closed, []string{"agent_a_sandbox"}) {
		t.Errorf("EndScope closes %q, %v", closed, err)
	}
}

// No project is not all of them.
func TestRemoveNoProject(t *testing.T) {
	p := around(backend(t, mock.Options{}), t.TempDir(), session.Options{})
	defer p.Close()
	mustOpen(t, p, workflow("w"))
	if err := p.RemoveProject(t.Context(), ""); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("RemoveProject of none: %v", err)
	}
	if err := counts(t.Context(), p, 1, 1); err != nil {
		t.Error(err)
	}
}

// Of many programs that open a session at once, one makes its sandbox, and one another
// in its place.
func TestManyPrograms(t *testing.T) {
	const programs = 10
	box, dir := surviving(backend(t, mock.Options{})), t.TempDir()
	var all []atoll.Provider
	for range programs {
		p := around(box, dir, session.Options{})
		defer p.Close()
		all = append(all, p)
	}
	for _, how := range []session.Opening{session.OpeningMade, session.OpeningReplaced} {
		opened := make(chan session.Opened)
		for _, p := range all {
			go func() {
				o, err := session.Open(context.Background(), p, workflow("w"))
				if err != nil {
					t.Errorf("OpenSession: %v", err)
				}
				opened <- o
			}()
		}
		makers, ids := 0, map[string]bool{}
		for range programs {
			o := <-opened
			if o.Opening == how {
				makers++
			}
			ids[o.Sandbox] = true
		}
		if makers != 1 || len(ids) != 1 {
			t.Errorf("%d have %s it, and they have %v", makers, how, ids)
		}
		if err := counts(t.Context(), all[0], 1, 1); err != nil {
			t.Error(err)
		}
		for id := range ids {
			removeBehind(t, box, id)
		}
	}
}
