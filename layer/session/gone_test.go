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

// removeBehind removes the sandbox of a session without the layer.
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

// checkReplaced checks that the next open reports a replacement, with the same
// spec.
func checkReplaced(t *testing.T, p atoll.Provider, before session.OpenResult) session.OpenResult {
	t.Helper()
	o := mustOpen(t, p, workflowSpec(before.Scope.ID))
	if o.Opening != session.OpeningReplaced || o.Sandbox == before.Sandbox || !strings.Contains(o.Note, "without the files") {
		t.Errorf("second open: %s (%q), want replaced", o.Opening, o.Note)
	}
	if !slices.Equal(o.Spec.Env, before.Spec.Env) {
		t.Errorf("the new sandbox has the spec %+v, want %+v", o.Spec, before.Spec)
	}
	return o
}

// OpenSession reports that the sandbox was gone, even if another call has noticed
// it before.
func TestGoneIsReported(t *testing.T) {
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
		"Sessions": func(t *testing.T, box atoll.Provider, dir string) {
			p := newLayer(box, dir, session.Options{})
			defer p.Close()
			if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) > 0 {
				t.Errorf("Sessions = %+v, %v", all, err)
			}
		},
		"a server": func(t *testing.T, box atoll.Provider, dir string) {
			p, s := newFastLayer(box, dir, session.Options{Server: true}), openStore(dir)
			defer p.Close()
			defer s.Close()
			noticed(t, s)
			if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) > 0 {
				t.Errorf("Sessions = %+v, %v", all, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			box, dir := markSurviving(openBackend(t, mock.Options{})), t.TempDir()
			p := newLayer(box, dir, session.Options{IdleTimeout: atoll.Never})
			defer p.Close()
			spec := workflowSpec("w")
			spec.Sandbox.Env = []string{"COLOUR=blue"}
			o := mustOpen(t, p, spec)
			removeBehind(t, box, o.Sandbox)
			notice(t, box, dir)
			o = checkReplaced(t, p, o)
			removeBehind(t, box, o.Sandbox)
			notice(t, box, dir)
			scope := session.Scope{Kind: session.ScopeWorkflow, ID: "w"}
			if _, err := session.EndScope(t.Context(), p, "", scope); err != nil {
				t.Errorf("EndScope: %v", err)
			}
			if again := mustOpen(t, p, workflowSpec("w")); again.Opening != session.OpeningMade || again.Note != "" || len(again.Spec.Env) > 0 {
				t.Errorf("after the end of its scope: %+v", again)
			}
		})
	}
}

// An idle session ends, and the next open reports it.
func TestIdleIsReported(t *testing.T) {
	p := newFastLayer(openBackend(t, mock.Options{}), t.TempDir(), session.Options{IdleTimeout: atoll.Duration(100 * time.Millisecond)})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	eventually(t, func() error { return checkCounts(t.Context(), p, 0, 0) })
	checkReplaced(t, p, o)
}

// The report of a replacement survives a failed creation.
func TestReplacementFails(t *testing.T) {
	var broken atomic.Bool
	box := openBackend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
		if op == "create" && broken.Load() {
			return atoll.Errorf(op, "", atoll.ErrExhausted, "there are too many")
		}
		return nil
	}})
	p := newLayer(box, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	removeBehind(t, box, o.Sandbox)
	broken.Store(true)
	for range 2 {
		if _, err := p.OpenSession(t.Context(), workflowSpec("w")); atoll.KindOf(err) != atoll.ErrExhausted {
			t.Errorf("OpenSession: %v", err)
		}
	}
	broken.Store(false)
	checkReplaced(t, p, o)
}

// The layer remembers a session whose sandbox is gone for days, then deletes it.
func TestForgotten(t *testing.T) {
	box, dir := openBackend(t, mock.Options{}), t.TempDir()
	p, s := newLayer(box, dir, session.Options{}), openStore(dir)
	defer s.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	removeBehind(t, box, o.Sandbox)
	setAge := func(days int) {
		x, err := s.FindSession(t.Context(), o.Project, o.Key)
		if err == nil {
			x.State, x.Holder, x.Used = session.StateGone, "", time.Now().Add(-time.Duration(days)*24*time.Hour)
			err = s.UpdateSession(t.Context(), x)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	setAge(6)
	p = newFastLayer(box, dir, session.Options{Server: true})
	defer p.Close()
	time.Sleep(200 * time.Millisecond) // several checks
	setAge(8)
	eventually(t, func() error {
		if _, err := s.FindSession(t.Context(), o.Project, o.Key); atoll.KindOf(err) != atoll.ErrNotExist {
			return fmt.Errorf("FindSession: %v, want none", err)
		}
		return nil
	})
}

// A hidingProvider has no sandboxes while it is away, like another engine at the
// same address.
type hidingProvider struct {
	atoll.ProviderLayer
	away atomic.Bool
}

func (h *hidingProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if h.away.Load() {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return h.Provider.Get(ctx, id)
}

func (h *hidingProvider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if h.away.Load() {
		return nil, nil
	}
	return h.Provider.List(ctx, f)
}

// A session gets its sandbox back when that reappears.
func TestSandboxReappears(t *testing.T) {
	box := &hidingProvider{ProviderLayer: atoll.ProviderLayer{Provider: openBackend(t, mock.Options{})}}
	p := newLayer(box, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	box.away.Store(true)
	if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("Sessions = %+v, %v, want none", all, err)
	}
	box.away.Store(false)
	if all, err := p.Sessions(t.Context(), ""); err != nil || len(all) != 1 || all[0].State != session.StateOpen {
		t.Errorf("Sessions = %+v, %v, want the one that is back", all, err)
	}
	if again := mustOpen(t, p, workflowSpec("w")); again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound {
		t.Errorf("after the return: %+v", again)
	}
}

// OpenSession does not discard files for an error that may be transient.
func TestStartFails(t *testing.T) {
	for kind, want := range map[atoll.Kind]session.Opening{
		atoll.ErrUnavailable: "", atoll.ErrExhausted: "", atoll.ErrConflict: "", atoll.ErrTimeout: "", atoll.ErrDenied: "",
		atoll.ErrInternal: session.OpeningReplaced, atoll.ErrUnsupported: session.OpeningReplaced, atoll.ErrNotExist: session.OpeningReplaced,
	} {
		var broken atomic.Bool
		p := newLayer(openBackend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
			if op == "start" && broken.Load() {
				return atoll.Errorf(op, "", kind, "the port is taken")
			}
			return nil
		}}), t.TempDir(), session.Options{})
		defer p.Close()
		first := mustOpen(t, p, workflowSpec("w"))
		sb, err := p.Get(t.Context(), first.Sandbox)
		if err == nil {
			err = sb.Stop(t.Context(), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		o, err := p.OpenSession(t.Context(), workflowSpec("w"))
		if want == "" && atoll.KindOf(err) != kind || want != "" && (err != nil || o.Opening != want || !strings.Contains(o.Note, "the port is taken")) {
			t.Errorf("OpenSession when the start fails with %s: %+v, %v, want %q", kind, o, err, want)
		}
		broken.Store(false)
		if again := mustOpen(t, p, workflowSpec("w")); (again.Sandbox == first.Sandbox) != (want == "") {
			t.Errorf("after a start that failed with %s: %+v", kind, again)
		}
	}
}

// OpenSession does not replace a sandbox during its rebuild.
func TestOpenDuringRebuild(t *testing.T) {
	var remaking atomic.Bool
	box := openBackend(t, mock.Options{})
	p := newLayer(statusProvider{box, func(st *atoll.Status) {
		if remaking.Load() {
			st.State, st.Reason = atoll.StateCreating, "rebuild in progress"
		}
	}}, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	remaking.Store(true)
	if _, err := p.OpenSession(t.Context(), workflowSpec("w")); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("OpenSession meanwhile: %v", err)
	}
	remaking.Store(false)
	if again := mustOpen(t, p, workflowSpec("w")); again.Sandbox != o.Sandbox {
		t.Errorf("OpenSession replaced the sandbox: %+v", again)
	}
}

// A statusProvider changes the statuses of its sandboxes.
type statusProvider struct {
	atoll.Provider
	change func(*atoll.Status)
}

func (p statusProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	spec = spec.Clone()
	spec.IdleStop, spec.IdleRemove = 0, false
	return p.wrapSandbox(p.Provider.Create(ctx, spec))
}

func (p statusProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return p.wrapSandbox(p.Provider.Get(ctx, id))
}

func (p statusProvider) wrapSandbox(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return statusSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

func (p statusProvider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := p.Provider.List(ctx, f)
	for i := range all {
		p.change(&all[i])
	}
	return all, err
}

type statusSandbox struct {
	atoll.SandboxLayer
	p statusProvider
}

func (s statusSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.SandboxLayer.Status(ctx)
	s.p.change(&st)
	return st, err
}

// markSurviving returns p with sandboxes that outlive programs.
func markSurviving(p atoll.Provider) atoll.Provider {
	return statusProvider{p, func(st *atoll.Status) { st.Caps.Survives = true }}
}

// markIdleStop returns p with sandboxes that outlive programs, and that p stops
// when they are idle.
func markIdleStop(p atoll.Provider) atoll.Provider {
	return statusProvider{p, func(st *atoll.Status) { st.Caps.Survives, st.Caps.IdleStop = true, true }}
}

// A check of any number of sessions costs one call.
func TestManySessions(t *testing.T) {
	const many = 50
	var counting atomic.Bool
	var lists, others atomic.Int32
	box := markIdleStop(openBackend(t, mock.Options{Before: func(_ context.Context, op string, _ int) error {
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
	p := newLayer(box, dir, session.Options{})
	defer p.Close()
	var gone session.OpenResult
	for i := range many {
		gone = mustOpen(t, p, workflowSpec(fmt.Sprint("w", i)))
	}
	counting.Store(true)
	server := newFastLayer(box, dir, session.Options{Server: true})
	defer server.Close()
	eventually(t, func() error {
		if lists.Load() < 5 {
			return errors.New("fewer than five checks")
		}
		return nil
	})
	if n := others.Load(); n > 0 {
		t.Errorf("%d other calls", n)
	}
	counting.Store(false)
	removeBehind(t, box, gone.Sandbox)
	s := openStore(dir)
	defer s.Close()
	eventually(t, func() error {
		if all, err := s.Sessions(t.Context(), ""); err != nil || all[many-1].State != session.StateGone {
			return fmt.Errorf("the missing sandbox was not noticed: %v", err)
		}
		return nil
	})
}

// OpenSession counts as use of the sandbox, and finds out if it has just ended.
func TestOpeningIsUse(t *testing.T) {
	asked := &askProvider{ProviderLayer: atoll.ProviderLayer{Provider: markIdleStop(openBackend(t, mock.Options{}))}}
	p := newLayer(asked, t.TempDir(), session.Options{})
	defer p.Close()
	o := mustOpen(t, p, workflowSpec("w"))
	for i := range int32(3) {
		if n := asked.n.Load(); n < i {
			t.Errorf("%d opens, but %d calls of Processes", i, n)
		}
		mustOpen(t, p, workflowSpec("w"))
	}
	asked.ends.Store(true) // at the next call of Processes
	if again := mustOpen(t, p, workflowSpec("w")); again.Sandbox != o.Sandbox || again.Opening != session.OpeningRestarted {
		t.Errorf("open of one that has just ended: %+v", again)
	}
}

// An askProvider counts calls of Processes, and can end a sandbox in one.
type askProvider struct {
	atoll.ProviderLayer
	n    atomic.Int32
	ends atomic.Bool
}

func (p *askProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return askedSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

type askedSandbox struct {
	atoll.SandboxLayer
	p *askProvider
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

// An attachment to the main process counts as use.
func TestAttached(t *testing.T) {
	idle := testenv.Scale(1200 * time.Millisecond) // long enough for the first use of a sandbox
	p := newFastLayer(openBackend(t, mock.Options{}), t.TempDir(), session.Options{IdleTimeout: atoll.Duration(idle)})
	defer p.Close()
	spec := workflowSpec("w")
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
	time.Sleep(idle * 3 / 2)
	if err := checkCounts(t.Context(), p, 1, 1); err != nil {
		t.Errorf("during the attachment: %v", err)
	}
	cancel()
	<-done
	eventually(t, func() error { return checkCounts(t.Context(), p, 0, 0) })
}

// The end of a workflow also ends sessions that got its ID in a later open.
func TestWorkflowIsNamedLater(t *testing.T) {
	p := newLayer(openBackend(t, mock.Options{}), t.TempDir(), session.Options{})
	defer p.Close()
	agent := &session.Spec{Scope: session.Scope{Kind: session.ScopeAgent, ID: "a"}}
	mustOpen(t, p, agent)
	for _, id := range []string{"w", "another"} {
		agent.Workflow = id
		if o := mustOpen(t, p, agent); o.Workflow != "w" {
			t.Errorf("opened in %s, the workflow is %q", id, o.Workflow)
		}
	}
	closed, err := session.EndScope(t.Context(), p, "", session.Scope{Kind: session.ScopeWorkflow, ID: "w"})
	if err != nil || !slices.Equal(closed, []string{"agent_a_sandbox"}) {
		t.Errorf("EndScope closes %q, %v", closed, err)
	}
}

// RemoveProject without a name does not remove all projects.
func TestRemoveNoProject(t *testing.T) {
	p := newLayer(openBackend(t, mock.Options{}), t.TempDir(), session.Options{})
	defer p.Close()
	mustOpen(t, p, workflowSpec("w"))
	if err := p.RemoveProject(t.Context(), ""); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("RemoveProject without a name: %v", err)
	}
	if err := checkCounts(t.Context(), p, 1, 1); err != nil {
		t.Error(err)
	}
}

// Of many programs that open a session at once, exactly one creates its sandbox,
// and exactly one replaces it.
func TestManyPrograms(t *testing.T) {
	const programs = 10
	box, dir := markSurviving(openBackend(t, mock.Options{})), t.TempDir()
	var all []atoll.Provider
	for range programs {
		p := newLayer(box, dir, session.Options{})
		defer p.Close()
		all = append(all, p)
	}
	for _, how := range []session.Opening{session.OpeningMade, session.OpeningReplaced} {
		opened := make(chan session.OpenResult)
		for _, p := range all {
			go func() {
				o, err := session.Open(context.Background(), p, workflowSpec("w"))
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
			t.Errorf("%d programs have %s the sandbox, and got %v", makers, how, ids)
		}
		if err := checkCounts(t.Context(), all[0], 1, 1); err != nil {
			t.Error(err)
		}
		for id := range ids {
			removeBehind(t, box, id)
		}
	}
}
