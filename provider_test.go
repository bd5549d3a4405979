package atoll

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFilter(t *testing.T) {
	st := Status{Provider: "v", State: StateRunning, Spec: Spec{Name: "n", Project: "p", Labels: map[string]string{"a": "1", "b": ""}}}
	for _, tt := range []struct {
		f    Filter
		want bool
	}{
		{Filter{}, true},
		{Filter{Name: "n", Project: "p", Provider: "v", Labels: map[string]string{"a": "1", "b": ""}, States: []State{StateStopped, StateRunning}}, true},
		{Filter{Name: "other"}, false},
		{Filter{Project: "other"}, false},
		{Filter{Provider: "other"}, false},
		{Filter{Labels: map[string]string{"a": "2"}}, false},
		{Filter{Labels: map[string]string{"c": ""}}, false},
		{Filter{States: []State{StateStopped}}, false},
		{Filter{Name: "n", States: []State{StateStopped}}, false},
	} {
		if got := tt.f.Match(st); got != tt.want {
			t.Errorf("%+v matches: %v, want %v", tt.f, got, tt.want)
		}
	}
}

func TestStatusClone(t *testing.T) {
	st := Status{ID: "x", Exit: &Exit{Code: 3}, Spec: Spec{Labels: map[string]string{"a": "1"}, Cmd: []string{"c"}, TTY: &Size{1, 2}}, Ports: []PublishedPort{{80, "127.0.0.1:8080"}}}
	c := st.Clone()
	if !reflect.DeepEqual(c, st) {
		t.Errorf("the clone is %+v, want %+v", c, st)
	}
	c.Exit.Code, c.Spec.Labels["a"], c.Spec.Cmd[0], c.Spec.TTY.Rows, c.Ports[0].Port = 4, "2", "d", 9, 81
	if st.Exit.Code != 3 || st.Spec.Labels["a"] != "1" || st.Spec.Cmd[0] != "c" || st.Spec.TTY.Rows != 1 || st.Ports[0].Port != 80 {
		t.Errorf("a change of the clone changed the original: %+v", st)
	}
}

// listProvider is a Provider without optional abilities.
type listProvider struct {
	Provider
	boxes []*fakeSandbox
	fail  error
}

func (s *listProvider) Info() Info { return Info{Name: "shelf"} }

func (s *listProvider) Get(ctx context.Context, id string) (Sandbox, error) {
	for _, b := range s.boxes {
		if b.id == id {
			return b, s.fail
		}
	}
	return nil, E("get", id, ErrNotFound, s.fail)
}

func (s *listProvider) List(ctx context.Context, f Filter) (list []Status, err error) {
	for _, b := range s.boxes {
		if st := (Status{ID: b.id, Spec: Spec{Name: b.name, Project: b.project}}); !b.removed && f.Match(st) {
			list = append(list, st)
		}
	}
	return list, s.fail
}

func TestResolve(t *testing.T) {
	a, b := &fakeSandbox{id: NewID(), name: "web", project: DefaultProject}, &fakeSandbox{id: NewID(), name: "web", project: "other"}
	named := &fakeSandbox{id: NewID(), name: a.id, project: DefaultProject} // its name is another sandbox's id
	uuid := &fakeSandbox{id: NewID(), name: "11111111222243338444555555555555", project: DefaultProject}
	s := &listProvider{boxes: []*fakeSandbox{a, b, named, uuid}}
	for _, tt := range []struct {
		project, ref string
		want         *fakeSandbox
	}{
		{"", "web", a}, {"default", "web", a}, {"other", "web", b}, {"", b.id, b}, {"", a.id, a},
		{"", uuid.name, uuid}, {"", "11111111-2222-4333-8444-555555555555", uuid},
		{"third", "web", nil}, {"", "nope", nil}, {"", "", nil}, {"", "a b", nil}, {"", NewID(), nil},
	} {
		for _, p := range []Provider{s, ProviderLayer{s}} {
			got, err := Resolve(t.Context(), p, tt.project, tt.ref)
			if tt.want == nil {
				if KindOf(err) != ErrNotFound {
					t.Errorf("Resolve(%q, %q) = %v, %v; want ErrNotFound", tt.project, tt.ref, got, err)
				}
			} else if err != nil || got.ID() != tt.want.id {
				t.Errorf("Resolve(%q, %q): %v, %v; want %s", tt.project, tt.ref, got, err, tt.want.id)
			}
		}
	}
	s.fail = E("list", "", ErrUnavailable, nil)
	if _, err := Resolve(t.Context(), s, "", "web"); KindOf(err) != ErrUnavailable {
		t.Errorf("Resolve over a provider that fails: %v", err)
	}
}

func TestRemoveProject(t *testing.T) {
	boxes := []*fakeSandbox{{id: NewID(), project: "a"}, {id: NewID(), project: "b"}, {id: NewID(), project: "a"}}
	if err := RemoveProject(t.Context(), ProviderLayer{&listProvider{boxes: boxes}}, "a"); err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		if want := b.project == "a"; b.removed != want || b.volumesRemoved != want {
			t.Errorf("sandbox of project %s: removed %v, volumes %v", b.project, b.removed, b.volumesRemoved)
		}
	}
}

// TestHelpersAnswer checks that every helper handles values without its ability, bare and behind
// a layer.
func TestHelpersAnswer(t *testing.T) {
	ctx := t.Context()
	var bare Sandbox = &plainSandbox{}
	for _, sb := range []Sandbox{bare, SandboxLayer{bare}} {
		_, dial := Dial(ctx, sb, 80)
		_, snapshot := TakeSnapshot(ctx, sb)
		_, usage := UsageOf(ctx, sb)
		_, processes := Processes(ctx, sb)
		f := Files(sb)
		_, _, read := f.Read(ctx, "x", 0)
		_, write := f.Write(ctx, "x", nil, WriteOptions{})
		_, stat := f.Stat(ctx, "x")
		_, list := f.List(ctx, "x", false)
		var watch error
		for _, watch = range f.Watch(ctx, "x", false) {
		}
		for what, err := range map[string]error{
			"Dial": dial, "Snapshot": snapshot, "Usage": usage, "Processes": processes,
			"Pause": Pause(ctx, sb), "Resume": Resume(ctx, sb),
			"Read": read, "Write": write, "Stat": stat, "List": list, "Watch": watch,
			"Mkdir": f.Mkdir(ctx, "x", 0), "Rename": f.Rename(ctx, "x", "y"), "Remove": f.Remove(ctx, "x", false),
			"WriteTar": f.WriteTar(ctx, "x", nil), "ReadTar": f.ReadTar(ctx, "x", nil),
		} {
			if !errors.Is(err, ErrUnsupported) || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s of a %T: %v, want ErrUnsupported", what, sb, err)
			}
		}
	}
	for _, p := range []Provider{&listProvider{}, ProviderLayer{&listProvider{}}} {
		_, volumes := Volumes(ctx, p, "")
		_, snapshots := Snapshots(ctx, p)
		_, images := Images(ctx, p)
		_, prune := PruneImages(ctx, p, PruneOptions{})
		_, resolve := ResolveImage(ctx, p, "i")
		_, secret := SecretOf(ctx, p, NewID())
		for what, err := range map[string]error{
			"Volumes": volumes, "RemoveVolume": RemoveVolume(ctx, p, "", "v"),
			"Images": images, "RemoveImage": RemoveImage(ctx, p, "i", false), "PruneImages": prune,
			"Snapshots": snapshots, "RemoveSnapshot": RemoveSnapshot(ctx, p, "s"),
			"ResolveImage": resolve, "SecretOf": secret,
		} {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s of a %T: %v, want ErrUnsupported", what, p, err)
			}
		}
		if probe := ProbeProvider(ctx, p); !probe.OK {
			t.Errorf("Probe of a %T: %+v, want OK", p, probe)
		}
		members, err := Members(ctx, p)
		if err != nil || len(members) != 1 || members[0].Info != p.Info() || !members[0].InUse {
			t.Errorf("Members of a %T: %+v, %v, want itself alone", p, members, err)
		}
		if _, err := PruneImages(ctx, p, PruneOptions{Provider: "other"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("PruneImages of a provider that a %T does not have: %v, want ErrInvalid", p, err)
		}
		if err := Prepare(ctx, p, &Spec{}, nil); err != nil {
			t.Errorf("Prepare of a %T: %v", p, err)
		}
	}
	for _, proc := range []Process{&fakeProcess{}, ProcessLayer{&fakeProcess{}}} {
		if err := Resize(ctx, proc, Size{}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("Resize of a %T: %v, want ErrUnsupported", proc, err)
		}
	}
}

// plainSandbox is a Sandbox without any optional ability.
type plainSandbox struct{ Sandbox }

func (*plainSandbox) ID() string { return "plain" }

// fullSandbox is a Sandbox with all abilities, each of which fails with an error of its own.
type fullSandbox struct {
	Sandbox
	FS
	err error
}

func (a *fullSandbox) ID() string                             { return "able" }
func (a *fullSandbox) Files() FS                              { return a.FS }
func (a *fullSandbox) Pause(context.Context) error            { return a.err }
func (a *fullSandbox) Resume(context.Context) error           { return a.err }
func (a *fullSandbox) Extend(context.Context, Duration) error { return a.err }
func (a *fullSandbox) Snapshot(context.Context, ...SnapshotOption) (Snapshot, error) {
	return Snapshot{}, a.err
}
func (a *fullSandbox) Usage(context.Context) (Usage, error)                { return Usage{}, a.err }
func (a *fullSandbox) Processes(context.Context) ([]ProcessStatus, error)  { return nil, a.err }
func (a *fullSandbox) Start(context.Context) error                         { return a.err }
func (a *fullSandbox) Stop(context.Context, time.Duration) error           { return a.err }
func (a *fullSandbox) Remove(ctx context.Context, _ ...RemoveOption) error { return a.err }

func TestLayersOfLayersReachTheLeaf(t *testing.T) {
	a := &fullSandbox{err: io.ErrNoProgress, FS: noFS{"able"}}
	var sb Sandbox = SandboxLayer{SandboxLayer{a}}
	_, snapshot := TakeSnapshot(t.Context(), sb)
	_, usage := UsageOf(t.Context(), sb)
	_, processes := Processes(t.Context(), sb)
	for what, err := range map[string]error{
		"Pause": Pause(t.Context(), sb), "Resume": Resume(t.Context(), sb), "Extend": Extend(t.Context(), sb, 1), "Snapshot": snapshot, "Usage": usage, "Processes": processes,
	} {
		if err != a.err {
			t.Errorf("%s through two layers: %v, want the leaf's error", what, err)
		}
	}
	if Files(sb) != a.FS {
		t.Error("Files through two layers is not the leaf's")
	}
}

// Open tries the openers in the order of their ranks, and another one only if the former is not possible here.
func TestOpen(t *testing.T) {
	defer func(before []namedOpener) { openers = before }(openers)
	openers = nil
	if _, err := Open(t.Context()); KindOf(err) != ErrUnsupported || !strings.Contains(err.Error(), "import provider/auto") {
		t.Errorf("without an opener: %v", err)
	}
	want := &struct{ Provider }{}
	fails := func(kind Kind, text string) Opener {
		return func(context.Context) (Provider, error) { return nil, Errorf("", "", kind, "%s", text) }
	}
	RegisterOpener("third", 3, fails(ErrInternal, "never called"))
	RegisterOpener("first", 1, fails(ErrUnsupported, "not here"))
	RegisterOpener("second", 2, func(context.Context) (Provider, error) { return want, nil })
	if got, err := Open(t.Context()); err != nil || got != Provider(want) {
		t.Errorf("Open: %v, %v", got, err)
	}
	closed := false
	broken := &probedProvider{probe: Probe{Reason: "no engine", Fix: "start one"}, close: func() { closed = true }}
	RegisterOpener("broken", 1, ProbedOpener(func(context.Context) (Provider, error) { return broken, nil }))
	if got, err := Open(t.Context()); err != nil || got != Provider(want) || !closed {
		t.Errorf("Open beside a provider that does not work: %v, %v; that one is closed: %v", got, err, closed)
	}
	broken.probe.OK = true
	if got, err := Open(t.Context()); err != nil || got != Provider(broken) {
		t.Errorf("Open of a provider that works: %v, %v", got, err)
	}
	RegisterOpener("zeroth", 0, fails(ErrDenied, "a wrong token"))
	if _, err := Open(t.Context()); KindOf(err) != ErrDenied || !strings.Contains(err.Error(), "a wrong token") {
		t.Errorf("an opener that fails: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name can be taken twice")
		}
	}()
	RegisterOpener("first", 9, fails(ErrInternal, ""))
}

// A probedProvider reports a fixed result of its probe.
type probedProvider struct {
	Provider
	probe Probe
	close func()
}

func (p *probedProvider) Probe(context.Context) Probe { return p.probe }

func (p *probedProvider) Close() error {
	p.close()
	return nil
}
