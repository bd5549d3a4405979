package router_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/provider/local"
)

func mustCreate(t *testing.T, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { sb.Remove(context.Background(), atoll.RemoveVolumes()) })
	return sb
}

func providerOf(t *testing.T, p atoll.Provider, id string) string {
	t.Helper()
	sb, err := p.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	if st.Provider != st.Spec.Provider {
		t.Errorf("the status has provider %s, its spec %s", st.Provider, st.Spec.Provider)
	}
	return st.Provider
}

func wantError(t *testing.T, what string, err error, kind atoll.Kind, text string) {
	t.Helper()
	if atoll.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s with %q", what, err, kind, text)
	}
}

// The router calls Options.Default if neither spec nor project names a member, and
// not otherwise.
func TestDefaultRefuses(t *testing.T) {
	calls, down := 0, error(atoll.Errorf("create", "", atoll.ErrUnavailable, "none works here"))
	p := newRouter(t, router.Options{
		Projects: map[string]string{"team": "mock", "own": "local"},
		Default:  func() error { calls++; return down },
	}, localMember(t), mockMember(t))
	for _, spec := range []atoll.Spec{{Provider: "local"}, {Provider: "mock"}, {Project: "team"}, {Project: "own"}} {
		mustCreate(t, p, spec)
	}
	if all, err := p.List(t.Context(), atoll.Filter{}); len(all) != 4 || err != nil {
		t.Errorf("List: %d, %v, want 4", len(all), err)
	}
	if calls != 0 {
		t.Errorf("%d calls of Default, want none", calls)
	}
	_, err := p.Create(t.Context(), &atoll.Spec{})
	wantError(t, "Create", err, atoll.ErrUnavailable, "none works here")
	wantError(t, "Prepare", p.Prepare(t.Context(), &atoll.Spec{}, nil), atoll.ErrUnavailable, "none works here")
	down = nil
	if providerOf(t, p, mustCreate(t, p, atoll.Spec{}).ID()) != "local" || calls != 3 {
		t.Errorf("%d calls of Default, want 3, and a sandbox of the default member", calls)
	}
}

// The spec selects the member, else its project, else it is the default one. Calls
// find the sandbox there.
func TestRouting(t *testing.T) {
	p := newRouter(t, router.Options{Projects: map[string]string{"team": "mock"}}, localMember(t), mockMember(t))
	for _, tt := range []struct {
		spec atoll.Spec
		want string
	}{
		{atoll.Spec{Name: "a"}, "local"},
		{atoll.Spec{Name: "b", Provider: "mock"}, "mock"},
		{atoll.Spec{Name: "c", Project: "team"}, "mock"},
		{atoll.Spec{Name: "d", Project: "team", Provider: "local"}, "local"},
	} {
		sb := mustCreate(t, p, tt.spec)
		if got := providerOf(t, p, sb.ID()); got != tt.want {
			t.Errorf("%+v is at %s, want %s", tt.spec, got, tt.want)
		}
		found, err := atoll.Resolve(t.Context(), p, tt.spec.Project, tt.spec.Name)
		if err != nil || found.ID() != sb.ID() {
			t.Errorf("Resolve(%s): %v", tt.spec.Name, err)
		}
	}
	for provider, want := range map[string]string{"": "abcd", "local": "ad", "mock": "bc"} {
		all, err := p.List(t.Context(), atoll.Filter{Provider: provider})
		got := ""
		for _, st := range all {
			got += st.Spec.Name
		}
		if err != nil || got != want {
			t.Errorf("List of %q: %q, %v; want %q", provider, got, err, want)
		}
	}
	const there = `provider "vm" not found: there are local, mock`
	_, err := p.Create(t.Context(), &atoll.Spec{Provider: "vm"})
	wantError(t, "Create", err, atoll.ErrInvalid, there)
	wantError(t, "Prepare", p.Prepare(t.Context(), &atoll.Spec{Provider: "vm"}, nil), atoll.ErrInvalid, there)
	_, err = p.List(t.Context(), atoll.Filter{Provider: "vm"})
	wantError(t, "List", err, atoll.ErrInvalid, there)
	if p.Info().Name != "local" {
		t.Errorf("Info has the name %s", p.Info().Name)
	}
}

func TestNew(t *testing.T) {
	for what, opts := range map[string]struct {
		members []router.Member
		opts    router.Options
		want    string
	}{
		"none":              {nil, router.Options{}, "no providers given"},
		"twice":             {[]router.Member{mockMember(t), mockMember(t)}, router.Options{}, "invalid or duplicate name"},
		"no name":           {[]router.Member{{Name: "a b"}}, router.Options{}, "invalid or duplicate name"},
		"a project's":       {[]router.Member{mockMember(t)}, router.Options{Projects: map[string]string{"p": "x"}}, `project p: provider "x" not found: there is mock`},
		"the default one's": {[]router.Member{brokenMember("docker"), mockMember(t)}, router.Options{}, "the context is bad"},
	} {
		_, err := router.New(opts.members, opts.opts)
		wantError(t, what, err, atoll.ErrInvalid, opts.want)
	}
}

// IDs and names are unique over all members.
func TestClash(t *testing.T) {
	p := newRouter(t, router.Options{}, localMember(t), mockMember(t))
	for _, at := range [][2]string{{"local", "mock"}, {"mock", "local"}} {
		sb := mustCreate(t, p, atoll.Spec{Name: "on-" + at[0], Provider: at[0]})
		_, err := p.Create(t.Context(), &atoll.Spec{Name: "on-" + at[0], Provider: at[1]})
		wantError(t, "the name", err, atoll.ErrAlreadyExists, "exists at provider "+at[0])
		_, err = p.Create(t.Context(), &atoll.Spec{ID: sb.ID(), Provider: at[1]})
		wantError(t, "the id", err, atoll.ErrAlreadyExists, "exists at provider "+at[0])
		mustCreate(t, p, atoll.Spec{Name: "on-" + at[0], Project: "other", Provider: at[1]})
	}
}

func TestClashAtOnce(t *testing.T) {
	p := newRouter(t, router.Options{}, localMember(t), mockMember(t))
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			_, err := p.Create(t.Context(), &atoll.Spec{Name: "one", Provider: []string{"local", "mock"}[i%2]})
			if err == nil {
				made.Add(1)
			} else if atoll.KindOf(err) != atoll.ErrAlreadyExists {
				t.Errorf("Create: %v", err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("%d sandboxes have one name", made.Load())
	}
	if err := p.RemoveProject(t.Context(), atoll.DefaultProject); err != nil {
		t.Errorf("RemoveProject: %v", err)
	}
	if left, err := p.List(t.Context(), atoll.Filter{}); len(left) > 0 || err != nil {
		t.Errorf("after RemoveProject: %d sandboxes, %v", len(left), err)
	}
}

// An unavailable member without sandboxes affects only calls that name it.
func TestNeverUsed(t *testing.T) {
	var log bytes.Buffer
	p := newRouter(t, router.Options{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))}, mockMember(t), brokenMember("docker"))
	sb := mustCreate(t, p, atoll.Spec{Name: "web"})
	if _, err := p.Get(t.Context(), sb.ID()); err != nil {
		t.Errorf("Get: %v", err)
	}
	_, err := p.Get(t.Context(), atoll.NewID())
	wantError(t, "Get of an unknown id", err, atoll.ErrNotFound, "")
	_, err = atoll.Resolve(t.Context(), p, "", "none")
	wantError(t, "Resolve of an unknown name", err, atoll.ErrNotFound, "")
	if all, err := p.List(t.Context(), atoll.Filter{}); len(all) != 1 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
	_, err = p.Create(t.Context(), &atoll.Spec{Provider: "docker"})
	wantError(t, "Create", err, atoll.ErrInvalid, "the context is bad")
	s := newFlakyMember(t)
	q := newRouter(t, router.Options{Dir: t.TempDir()}, localMember(t), s.Member)
	s.setError(errDown)
	_, err = q.Create(t.Context(), &atoll.Spec{Provider: "mock"})
	wantError(t, "Create", err, atoll.ErrUnavailable, "the engine is down")
	_, err = q.Get(t.Context(), atoll.NewID())
	wantError(t, "Get after a failed Create", err, atoll.ErrNotFound, "")
	_, err = p.List(t.Context(), atoll.Filter{Provider: "docker"})
	wantError(t, "List of docker", err, atoll.ErrInvalid, "the context is bad")
	if log.Len() > 0 {
		t.Errorf("unexpected log: %s", log.String())
	}
	members, err := p.Members(t.Context())
	if err != nil || len(members) != 2 || members[1].Name != "docker" || members[1].InUse || !strings.Contains(members[1].Problem, "the context is bad") {
		t.Errorf("Members: %+v, %v", members, err)
	}
}

// A flakyMember is a mock whose calls fail while it has an error.
type flakyMember struct {
	router.Member
	err   atomic.Pointer[error]
	calls atomic.Int32
	waits atomic.Int64 // the sum of the time limits of hanging calls
}

func newFlakyMember(t *testing.T) *flakyMember {
	s, healthy := &flakyMember{}, mockMember(t)
	s.Member = router.Member{Name: "mock", Open: func() (atoll.Provider, error) {
		p, err := healthy.Open()
		return &flakyProvider{atoll.ProviderLayer{Provider: p}, s}, err
	}}
	return s
}

// beforeCall returns the error of the next call.
func (s *flakyMember) beforeCall(ctx context.Context) error {
	s.calls.Add(1)
	err := s.err.Load()
	switch {
	case err == nil:
		return nil
	case *err == errHangs:
		wait := time.Hour
		if end, ok := ctx.Deadline(); ok {
			wait = time.Until(end)
		}
		s.waits.Add(int64(wait))
		<-ctx.Done()
		return ctx.Err()
	}
	return *err
}

type flakyProvider struct {
	atoll.ProviderLayer
	s *flakyMember
}

func (p *flakyProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := p.s.beforeCall(ctx); err != nil {
		return nil, err
	}
	return p.Provider.Create(ctx, spec)
}

func (p *flakyProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := p.s.beforeCall(ctx); err != nil {
		return nil, err
	}
	return p.Provider.Get(ctx, id)
}

func (p *flakyProvider) Resolve(ctx context.Context, project, name string) (string, error) {
	if err := p.s.beforeCall(ctx); err != nil {
		return "", err
	}
	return atoll.ResolveID(ctx, p.Provider, project, name)
}

func (p *flakyProvider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if err := p.s.beforeCall(ctx); err != nil {
		return nil, err
	}
	return p.Provider.List(ctx, f)
}

func (p *flakyProvider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	if err := p.s.beforeCall(ctx); err != nil {
		return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, err) }
	}
	return p.Provider.Watch(ctx)
}

var errHangs = errors.New("the call hangs")

func (s *flakyMember) setError(err error) { s.err.Store(&err) }
func (s *flakyMember) clearError()        { s.err.Store(nil) }

var errDown = atoll.Errorf("list", "mock", atoll.ErrUnavailable, "the engine is down")

// Get of an unknown sandbox fails if a member with sandboxes is unavailable. The
// router logs that once, in this program and in the next.
func TestUsed(t *testing.T) {
	var log bytes.Buffer
	s, dir, here := newFlakyMember(t), t.TempDir(), localMember(t)
	opts := router.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}
	first := newRouter(t, opts, here, s.Member)
	mustCreate(t, first, atoll.Spec{Name: "mine"})
	its := mustCreate(t, first, atoll.Spec{Name: "its", Provider: "mock"})
	s.setError(errDown)
	defer s.clearError()
	_, err := first.Get(t.Context(), its.ID())
	wantError(t, "Get of a known sandbox", err, atoll.ErrUnavailable, "the engine is down")
	_, err = first.Create(t.Context(), &atoll.Spec{ID: its.ID()})
	wantError(t, "Create with its id", err, atoll.ErrAlreadyExists, "")

	p := newRouter(t, opts, localMember(t), s.Member) // like another program
	for range 3 {
		_, err = p.Get(t.Context(), atoll.NewID())
		wantError(t, "Get of an unknown id", err, atoll.ErrUnavailable, "the engine is down")
		_, err = atoll.Resolve(t.Context(), p, "", "its")
		wantError(t, "Resolve", err, atoll.ErrUnavailable, "the engine is down")
		if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
			t.Errorf("List: %v", err)
		}
	}
	if n := strings.Count(log.String(), `level=WARN msg="provider mock is unavailable" err="list mock: the engine is down"`); n != 2 {
		t.Errorf("%d warnings, want one from each router:\n%s", n, log.String())
	}
	s.clearError()
	if all, err := first.List(t.Context(), atoll.Filter{}); len(all) != 2 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
	if !strings.Contains(log.String(), "provider mock is available again") {
		t.Errorf("the log does not show the recovery:\n%s", log.String())
	}
	if members, _ := first.Members(t.Context()); !members[1].InUse || members[1].Problem != "" {
		t.Errorf("Members: %+v", members)
	}
	// Without sandboxes, its absence has no effect.
	if err := its.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.List(t.Context(), atoll.Filter{}); err != nil {
		t.Error(err)
	}
	s.setError(errDown)
	_, err = newRouter(t, opts, localMember(t), s.Member).Get(t.Context(), atoll.NewID())
	wantError(t, "Get of an unknown id", err, atoll.ErrNotFound, "")
	_, err = first.Get(t.Context(), atoll.NewID())
	wantError(t, "Get of an unknown id", err, atoll.ErrNotFound, "")
}

// A slowLister calls meanwhile before List returns.
type slowLister struct {
	atoll.Provider
	meanwhile func()
}

func (s slowLister) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := s.Provider.List(ctx, f)
	s.meanwhile()
	return all, err
}

// If a program creates the first sandbox of a member during a List in another
// program that returns none, the mark file remains.
func TestCreateDuringList(t *testing.T) {
	dir := t.TempDir()
	mark := filepath.Join(dir, "local")
	if err := os.WriteFile(mark, nil, 0o600); err != nil { // it had sandboxes
		t.Fatal(err)
	}
	maker := newRouter(t, router.Options{Dir: dir}, mockMember(t), localMember(t))
	var once sync.Once
	slow := router.Member{Name: "local", Open: func() (atoll.Provider, error) {
		p, err := local.New(local.Options{Dir: t.TempDir()})
		return slowLister{p, func() {
			once.Do(func() {
				if _, err := maker.Create(t.Context(), &atoll.Spec{Provider: "local"}); err != nil {
					t.Errorf("Create: %v", err)
				}
			})
		}}, err
	}}
	lister := newRouter(t, router.Options{Dir: dir}, mockMember(t), slow)
	for n, want := range []error{nil, fs.ErrNotExist} { // the second list is not late
		if _, err := lister.List(t.Context(), atoll.Filter{}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(mark); !errors.Is(err, want) {
			t.Errorf("after list %d: %v, want %v", n, err, want)
		}
	}
}

func TestAllFail(t *testing.T) {
	s := newFlakyMember(t)
	p := newRouter(t, router.Options{}, s.Member, brokenMember("docker"))
	s.setError(errDown)
	_, err := p.List(t.Context(), atoll.Filter{})
	wantError(t, "List", err, atoll.ErrUnavailable, "the engine is down")
	_, err = p.Get(t.Context(), atoll.NewID())
	wantError(t, "Get", err, atoll.ErrUnavailable, "the engine is down")
	for _, err = range p.Watch(t.Context()) {
	}
	wantError(t, "Watch", err, atoll.ErrUnavailable, "the engine is down")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.List(ctx, atoll.Filter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("List with an ended context: %v", err)
	}
}

// A member that does not answer delays others only briefly.
func TestHangs(t *testing.T) {
	s := newFlakyMember(t)
	p := newRouter(t, router.Options{}, localMember(t), s.Member)
	s.setError(errHangs)
	mustCreate(t, p, atoll.Spec{Name: "web"})
	if d := time.Duration(s.waits.Load()); d >= router.UnusedAnswerTimeout() || s.calls.Load() == 0 { // which a List gives a member
		t.Errorf("Create allows %v for %d calls", d, s.calls.Load())
	}
	all, err := p.List(t.Context(), atoll.Filter{})
	if len(all) != 1 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
	members, _ := p.Members(t.Context())
	if !strings.Contains(members[1].Problem, "no answer within "+router.UnusedAnswerTimeout().String()) {
		t.Errorf("Members: %+v", members)
	}
	before := s.calls.Load()
	mustCreate(t, p, atoll.Spec{})
	if s.calls.Load() != before {
		t.Error("Create called a member that is unavailable")
	}
}

// Options.Locate spares the router calls of other members.
func TestKnown(t *testing.T) {
	s, dir := newFlakyMember(t), t.TempDir()
	made, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	sb := mustCreate(t, made, atoll.Spec{})
	made.Close()
	s.setError(errDown)
	p := newRouter(t, router.Options{Dir: dir, Locate: func(_ context.Context, id string) (string, error) {
		if id == sb.ID() {
			return "mock", nil
		}
		return "", nil
	}}, localMember(t), s.Member)
	_, err = p.Get(t.Context(), atoll.NewID())
	wantError(t, "Get of an unknown id", err, atoll.ErrNotFound, "")
	_, err = p.Get(t.Context(), sb.ID())
	wantError(t, "Get", err, atoll.ErrUnavailable, "the engine is down")
	s.clearError()
	if got := providerOf(t, p, sb.ID()); got != "mock" {
		t.Errorf("the sandbox is at %s", got)
	}
}

func TestEager(t *testing.T) {
	dir, opened := t.TempDir(), 0
	m := mockMember(t)
	counted := router.Member{Name: "mock", Open: func() (atoll.Provider, error) { opened++; return m.Open() }}
	p := newRouter(t, router.Options{Dir: dir, Eager: true}, localMember(t), counted)
	if opened != 0 {
		t.Error("New opened a member without sandboxes")
	}
	sb := mustCreate(t, p, atoll.Spec{Provider: "mock"})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	_, err := p.Get(t.Context(), sb.ID())
	wantError(t, "Get after Close", err, atoll.ErrUnavailable, "closed")
	opened = 0
	newRouter(t, router.Options{Dir: dir}, localMember(t), counted)
	if opened != 0 {
		t.Error("New without Eager opened a member")
	}
	newRouter(t, router.Options{Dir: dir, Eager: true}, localMember(t), counted)
	if opened != 1 {
		t.Error("New did not open a member with sandboxes")
	}
}
