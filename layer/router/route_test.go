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

func create(t *testing.T, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
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
		t.Errorf("the status says %s, its spec %s", st.Provider, st.Spec.Provider)
	}
	return st.Provider
}

func wants(t *testing.T, what string, err error, kind atoll.Kind, text string) {
	t.Helper()
	if atoll.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s that says %q", what, err, kind, text)
	}
}

// Where nobody says who makes a sandbox the default one is asked for, and for nothing else.
func TestDefaultRefuses(t *testing.T) {
	asked, down := 0, error(atoll.Errorf("create", "", atoll.ErrUnavailable, "none works here"))
	p := open(t, router.Options{
		Projects: map[string]string{"team": "mock", "own": "local"},
		Default:  func() error { asked++; return down },
	}, locals(t), mocks(t))
	for _, spec := range []atoll.Spec{{Provider: "local"}, {Provider: "mock"}, {Project: "team"}, {Project: "own"}} {
		create(t, p, spec)
	}
	if all, err := p.List(t.Context(), atoll.Filter{}); len(all) != 4 || err != nil {
		t.Errorf("List: %d, %v, want 4", len(all), err)
	}
	if asked != 0 {
		t.Errorf("asked %d times, and nothing was left to the default one", asked)
	}
	_, err := p.Create(t.Context(), &atoll.Spec{})
	wants(t, "Create", err, atoll.ErrUnavailable, "none works here")
	wants(t, "Prepare", p.Prepare(t.Context(), &atoll.Spec{}, nil), atoll.ErrUnavailable, "none works here")
	down = nil
	if providerOf(t, p, create(t, p, atoll.Spec{}).ID()) != "local" || asked != 3 {
		t.Errorf("asked %d times, want 3, and then the default one", asked)
	}
}

// The spec says who makes a sandbox, else its project, else it is the default
// one; and there it is found.
func TestRouting(t *testing.T) {
	p := open(t, router.Options{Projects: map[string]string{"team": "mock"}}, locals(t), mocks(t))
	for _, tt := range []struct {
		spec atoll.Spec
		want string
	}{
		{atoll.Spec{Name: "a"}, "local"},
		{atoll.Spec{Name: "b", Provider: "mock"}, "mock"},
		{atoll.Spec{Name: "c", Project: "team"}, "mock"},
		{atoll.Spec{Name: "d", Project: "team", Provider: "local"}, "local"},
	} {
		sb := create(t, p, tt.spec)
		if got := providerOf(t, p, sb.ID()); got != tt.want {
			t.Errorf("%+v is on %s, want %s", tt.spec, got, tt.want)
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
	wants(t, "Create", err, atoll.ErrInvalid, there)
	wants(t, "Prepare", p.Prepare(t.Context(), &atoll.Spec{Provider: "vm"}, nil), atoll.ErrInvalid, there)
	_, err = p.List(t.Context(), atoll.Filter{Provider: "vm"})
	wants(t, "List", err, atoll.ErrInvalid, there)
	if p.Info().Name != "local" {
		t.Errorf("Info is that of %s", p.Info().Name)
	}
}

func TestNew(t *testing.T) {
	for what, opts := range map[string]struct {
		members []router.Member
		opts    router.Options
		want    string
	}{
		"none":              {nil, router.Options{}, "no providers given"},
		"twice":             {[]router.Member{mocks(t), mocks(t)}, router.Options{}, "is there twice"},
		"no name":           {[]router.Member{{Name: "a b"}}, router.Options{}, "is no name"},
		"a project's":       {[]router.Member{mocks(t)}, router.Options{Projects: map[string]string{"p": "x"}}, `project p: provider "x" not found: there is mock`},
		"the default one's": {[]router.Member{broken("docker"), mocks(t)}, router.Options{}, "the context is bad"},
	} {
		_, err := router.New(opts.members, opts.opts)
		wants(t, what, err, atoll.ErrInvalid, opts.want)
	}
}

// Ids and names are unique over all providers, whichever comes first.
func TestClash(t *testing.T) {
	p := open(t, router.Options{}, locals(t), mocks(t))
	for _, at := range [][2]string{{"local", "mock"}, {"mock", "local"}} {
		sb := create(t, p, atoll.Spec{Name: "on-" + at[0], Provider: at[0]})
		_, err := p.Create(t.Context(), &atoll.Spec{Name: "on-" + at[0], Provider: at[1]})
		wants(t, "the name", err, atoll.ErrAlreadyExists, "the provider "+at[0]+" has a sandbox")
		_, err = p.Create(t.Context(), &atoll.Spec{ID: sb.ID(), Provider: at[1]})
		wants(t, "the id", err, atoll.ErrAlreadyExists, "the provider "+at[0]+" has a sandbox")
		create(t, p, atoll.Spec{Name: "on-" + at[0], Project: "other", Provider: at[1]})
	}
}

func TestClashAtOnce(t *testing.T) {
	p := open(t, router.Options{}, locals(t), mocks(t))
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

// Nobody notices one that is not there and was never used, but who names it.
func TestNeverUsed(t *testing.T) {
	var log bytes.Buffer
	p := open(t, router.Options{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))}, mocks(t), broken("docker"))
	sb := create(t, p, atoll.Spec{Name: "web"})
	if _, err := p.Get(t.Context(), sb.ID()); err != nil {
		t.Errorf("Get: %v", err)
	}
	_, err := p.Get(t.Context(), atoll.NewID())
	wants(t, "Get of none", err, atoll.ErrNotFound, "")
	_, err = atoll.Resolve(t.Context(), p, "", "none")
	wants(t, "Resolve of none", err, atoll.ErrNotFound, "")
	if all, err := p.List(t.Context(), atoll.Filter{}); len(all) != 1 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
	_, err = p.Create(t.Context(), &atoll.Spec{Provider: "docker"})
	wants(t, "Create", err, atoll.ErrInvalid, "the context is bad")
	s := newSick(t)
	q := open(t, router.Options{Dir: t.TempDir()}, locals(t), s.Member)
	s.falls(errDown)
	_, err = q.Create(t.Context(), &atoll.Spec{Provider: "mock"})
	wants(t, "Create", err, atoll.ErrUnavailable, "the engine is down")
	_, err = q.Get(t.Context(), atoll.NewID())
	wants(t, "Get after a Create that failed", err, atoll.ErrNotFound, "")
	_, err = p.List(t.Context(), atoll.Filter{Provider: "docker"})
	wants(t, "List of docker", err, atoll.ErrInvalid, "the context is bad")
	if log.Len() > 0 {
		t.Errorf("it was logged: %s", log.String())
	}
	members, err := p.Members(t.Context())
	if err != nil || len(members) != 2 || members[1].Name != "docker" || members[1].InUse || !strings.Contains(members[1].Problem, "the context is bad") {
		t.Errorf("Members: %+v, %v", members, err)
	}
}

// A sick one is a mock whose calls fail when it is told to be ill.
type sick struct {
	router.Member
	ill   atomic.Pointer[error]
	calls atomic.Int32
	waits atomic.Int64 // for how long, in all, the router is ready to wait for calls that hang
}

func newSick(t *testing.T) *sick {
	s, healthy := &sick{}, mocks(t)
	s.Member = router.Member{Name: "mock", Open: func() (atoll.Provider, error) {
		p, err := healthy.Open()
		return &sickProvider{atoll.ProviderLayer{Provider: p}, s}, err
	}}
	return s
}

// call is how each call begins.
func (s *sick) call(ctx context.Context) error {
	s.calls.Add(1)
	err := s.ill.Load()
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

type sickProvider struct {
	atoll.ProviderLayer
	s *sick
}

func (p *sickProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := p.s.call(ctx); err != nil {
		return nil, err
	}
	return p.Provider.Create(ctx, spec)
}

func (p *sickProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := p.s.call(ctx); err != nil {
		return nil, err
	}
	return p.Provider.Get(ctx, id)
}

func (p *sickProvider) Resolve(ctx context.Context, project, name string) (string, error) {
	if err := p.s.call(ctx); err != nil {
		return "", err
	}
	return atoll.ResolveID(ctx, p.Provider, project, name)
}

func (p *sickProvider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	if err := p.s.call(ctx); err != nil {
		return nil, err
	}
	return p.Provider.List(ctx, f)
}

func (p *sickProvider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	if err := p.s.call(ctx); err != nil {
		return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, err) }
	}
	return p.Provider.Watch(ctx)
}

var errHangs = errors.New("it hangs")

func (s *sick) falls(err error) { s.ill.Store(&err) }
func (s *sick) recovers()       { s.ill.Store(nil) }

var errDown = atoll.Errorf("list", "mock", atoll.ErrUnavailable, "the engine is down")

// What is on one that cannot be asked is neither there nor not there, and it is
// told once, in this program and in the next.
func TestUsed(t *testing.T) {
	var log bytes.Buffer
	s, dir, here := newSick(t), t.TempDir(), locals(t)
	opts := router.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}
	first := open(t, opts, here, s.Member)
	create(t, first, atoll.Spec{Name: "mine"})
	its := create(t, first, atoll.Spec{Name: "its", Provider: "mock"})
	s.falls(errDown)
	defer s.recovers()
	_, err := first.Get(t.Context(), its.ID())
	wants(t, "Get of what is known to be there", err, atoll.ErrUnavailable, "the engine is down")
	_, err = first.Create(t.Context(), &atoll.Spec{ID: its.ID()})
	wants(t, "Create with its id", err, atoll.ErrAlreadyExists, "")

	p := open(t, opts, locals(t), s.Member) // as another program
	for range 3 {
		_, err = p.Get(t.Context(), atoll.NewID())
		wants(t, "Get of none", err, atoll.ErrUnavailable, "the engine is down")
		_, err = atoll.Resolve(t.Context(), p, "", "its")
		wants(t, "Resolve", err, atoll.ErrUnavailable, "the engine is down")
		if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
			t.Errorf("List: %v", err)
		}
	}
	if n := strings.Count(log.String(), `level=WARN msg="the provider mock cannot be asked" err="list mock: the engine is down"`); n != 2 {
		t.Errorf("it was told %d times, want once by each of two:\n%s", n, log.String())
	}
	s.recovers()
	if all, err := first.List(t.Context(), atoll.Filter{}); len(all) != 2 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
	if !strings.Contains(log.String(), "the provider mock can be asked again") {
		t.Errorf("its recovery was not told:\n%s", log.String())
	}
	if members, _ := first.Members(t.Context()); !members[1].InUse || members[1].Problem != "" {
		t.Errorf("Members: %+v", members)
	}
	// When it has none any longer, nobody misses it.
	if err := its.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.List(t.Context(), atoll.Filter{}); err != nil {
		t.Error(err)
	}
	s.falls(errDown)
	_, err = open(t, opts, locals(t), s.Member).Get(t.Context(), atoll.NewID())
	wants(t, "Get of none", err, atoll.ErrNotFound, "")
	_, err = first.Get(t.Context(), atoll.NewID())
	wants(t, "Get of none", err, atoll.ErrNotFound, "")
}

// slowLister has lists that are late: they are what was there before meanwhile.
type slowLister struct {
	atoll.Provider
	meanwhile func()
}

func (s slowLister) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := s.Provider.List(ctx, f)
	s.meanwhile()
	return all, err
}

// That a program makes the first sandbox of a provider, while another one that
// lists them is told that there are none, is not forgotten.
func TestUsedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	mark := filepath.Join(dir, "local")
	if err := os.WriteFile(mark, nil, 0o600); err != nil { // it had some
		t.Fatal(err)
	}
	maker := open(t, router.Options{Dir: dir}, mocks(t), locals(t))
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
	lister := open(t, router.Options{Dir: dir}, mocks(t), slow)
	for n, want := range []error{nil, fs.ErrNotExist} { // the second list is of what is there for good
		if _, err := lister.List(t.Context(), atoll.Filter{}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(mark); !errors.Is(err, want) {
			t.Errorf("after list %d: %v, want %v", n, err, want)
		}
	}
}

func TestAllFail(t *testing.T) {
	s := newSick(t)
	p := open(t, router.Options{}, s.Member, broken("docker"))
	s.falls(errDown)
	_, err := p.List(t.Context(), atoll.Filter{})
	wants(t, "List", err, atoll.ErrUnavailable, "the engine is down")
	_, err = p.Get(t.Context(), atoll.NewID())
	wants(t, "Get", err, atoll.ErrUnavailable, "the engine is down")
	for _, err = range p.Watch(t.Context()) {
	}
	wants(t, "Watch", err, atoll.ErrUnavailable, "the engine is down")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.List(ctx, atoll.Filter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("List with an ended context: %v", err)
	}
}

// One that does not answer holds nobody up for long.
func TestHangs(t *testing.T) {
	s := newSick(t)
	p := open(t, router.Options{}, locals(t), s.Member)
	s.falls(errHangs)
	create(t, p, atoll.Spec{Name: "web"})
	if d := time.Duration(s.waits.Load()); d > 1900*time.Millisecond || s.calls.Load() == 0 { // a List gives a member 2 s
		t.Errorf("Create waits for %v in %d calls", d, s.calls.Load())
	}
	all, err := p.List(t.Context(), atoll.Filter{})
	if len(all) != 1 || err != nil {
		t.Errorf("List: %d, %v", len(all), err)
	}
	members, _ := p.Members(t.Context())
	if !strings.Contains(members[1].Problem, "no answer within 2s") {
		t.Errorf("Members: %+v", members)
	}
	before := s.calls.Load()
	create(t, p, atoll.Spec{})
	if s.calls.Load() != before {
		t.Error("it was asked for nothing")
	}
}

// What others know of where a sandbox is spares asking.
func TestKnown(t *testing.T) {
	s, dir := newSick(t), t.TempDir()
	made, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, made, atoll.Spec{})
	made.Close()
	s.falls(errDown)
	p := open(t, router.Options{Dir: dir, Known: func(_ context.Context, id string) (string, error) {
		if id == sb.ID() {
			return "mock", nil
		}
		return "", nil
	}}, locals(t), s.Member)
	_, err = p.Get(t.Context(), atoll.NewID())
	wants(t, "Get of none", err, atoll.ErrNotFound, "")
	_, err = p.Get(t.Context(), sb.ID())
	wants(t, "Get", err, atoll.ErrUnavailable, "the engine is down")
	s.recovers()
	if got := providerOf(t, p, sb.ID()); got != "mock" {
		t.Errorf("it is on %s", got)
	}
}

func TestEager(t *testing.T) {
	dir, opened := t.TempDir(), 0
	m := mocks(t)
	counted := router.Member{Name: "mock", Open: func() (atoll.Provider, error) { opened++; return m.Open() }}
	p := open(t, router.Options{Dir: dir, Eager: true}, locals(t), counted)
	if opened != 0 {
		t.Error("one that has no sandboxes was opened")
	}
	sb := create(t, p, atoll.Spec{Provider: "mock"})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	_, err := p.Get(t.Context(), sb.ID())
	wants(t, "Get after Close", err, atoll.ErrUnavailable, "closed")
	opened = 0
	open(t, router.Options{Dir: dir}, locals(t), counted)
	if opened != 0 {
		t.Error("it was opened before it was needed")
	}
	open(t, router.Options{Dir: dir, Eager: true}, locals(t), counted)
	if opened != 1 {
		t.Error("one that has sandboxes was not opened")
	}
}
