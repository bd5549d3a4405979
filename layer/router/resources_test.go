package router_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestForwards(t *testing.T) {
	wrap := func(more ...router.Member) func(p atoll.Provider) atoll.Provider {
		return func(p atoll.Provider) atoll.Provider {
			first := router.Member{Name: p.Info().Name, Open: func() (atoll.Provider, error) { return p, nil }}
			r, err := router.New(append([]router.Member{first}, more...), router.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	// The router itself describes its members. It does not ask them for objects that
	// they cannot have, or to remove objects that they do not have.
	except := []string{"Provider.Members", "Provider.Get", "Provider.Snapshots", "Provider.RemoveProject", "Provider.PruneImages",
		"Provider.Secret", "Provider.Reconcile"}
	providertest.CheckLayer(t, wrap(), except...)
	providertest.CheckLayer(t, wrap(brokenMember("docker")), append(except, "Provider.RemoveVolume", "Provider.RemoveImage", "Provider.RemoveSnapshot")...)
}

func TestFaults(t *testing.T) {
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		p := newRouter(t, router.Options{Dir: t.TempDir()}, mockMember(t), faultyMember(localMember(t), plan))
		sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web", Provider: "local"})
		if err != nil {
			return
		}
		atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"true"}})
		p.List(t.Context(), atoll.Filter{})
		found, err := atoll.Resolve(t.Context(), p, "", "web")
		if err != nil {
			found = sb
		}
		if err := found.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			if err := found.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Errorf("second Remove: %v", err)
			}
		}
	})
}

// A member without projects, or an unavailable one, hides no project of the others.
func TestProjects(t *testing.T) {
	p := newRouter(t, router.Options{}, mockMember(t), registryMember(t, "one", nil), registryMember(t, "two", nil), registryMember(t, "three", errDown), brokenMember("docker"))
	all, err := p.Projects(t.Context())
	var got []string
	for _, one := range all {
		got = append(got, one.Name+"="+one.Provider)
	}
	if want := []string{"a=one", "a=two", "b=one", "b=two"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Projects: %v, %v; want %v", got, err, want)
	}
}

func TestVolumes(t *testing.T) {
	p := newRouter(t, router.Options{}, localMember(t), mockMember(t), brokenMember("docker"))
	mount := func(name string) []atoll.Mount {
		return []atoll.Mount{{Type: atoll.MountVolume, Source: name, Target: "/work/" + name}}
	}
	for _, spec := range []atoll.Spec{
		{Provider: "local", Mounts: mount("both")}, {Provider: "mock", Mounts: mount("both")},
		{Provider: "mock", Mounts: mount("one")},
	} {
		if err := mustCreate(t, p, spec).Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Fatal(err)
		}
	}
	wantVolumes := func(want ...string) {
		t.Helper()
		all, err := p.Volumes(t.Context(), "")
		var got []string
		for _, v := range all {
			got = append(got, v.Provider+"="+v.Name)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Volumes: %v, %v; want %v", got, err, want)
		}
	}
	wantVolumes("local=both", "mock=both", "mock=one")
	wantError(t, "both", p.RemoveVolume(t.Context(), "", "both"), atoll.ErrConflict, "both local and mock have it: write local=both or mock=both")
	wantError(t, "none", p.RemoveVolume(t.Context(), "", "none"), atoll.ErrNotExist, "")
	wantError(t, "unknown, of mock", p.RemoveVolume(t.Context(), "", "mock=none"), atoll.ErrNotExist, "")
	wantError(t, "of a failing member", p.RemoveVolume(t.Context(), "", "docker=none"), atoll.ErrInvalid, "the context is bad")
	for _, name := range []string{"one", "mock=both", "both"} {
		if err := p.RemoveVolume(t.Context(), "", name); err != nil {
			t.Errorf("RemoveVolume(%s): %v", name, err)
		}
	}
	wantVolumes()
}

// A renamedProvider is a mock under another name.
type renamedProvider struct {
	atoll.ProviderLayer
	name string
	snap string // the ID of its only snapshot
}

func renamedMember(t *testing.T, name, snap string) router.Member {
	m := mockMember(t)
	return router.Member{Name: name, Open: func() (atoll.Provider, error) {
		p, err := m.Open()
		return renamedProvider{atoll.ProviderLayer{Provider: p}, name, snap}, err
	}}
}

func (r renamedProvider) Info() atoll.Info {
	info := r.Provider.Info()
	info.Name, info.Caps.Snapshot = r.name, r.snap != ""
	return info
}

func (r renamedProvider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	s := *spec
	s.Provider = ""
	return atoll.Prepare(ctx, r.Provider, &s, progress)
}

func (r renamedProvider) Create(_ context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	return nil, atoll.Errorf("create", spec.Name, atoll.ErrExhausted, "%s was asked for %s", r.name, spec.Snapshot)
}

func (r renamedProvider) Snapshots(context.Context) ([]atoll.Snapshot, error) {
	if r.snap == "" {
		return nil, nil
	}
	return []atoll.Snapshot{{ID: r.snap, Provider: r.name}}, nil
}

func (r renamedProvider) RemoveSnapshot(_ context.Context, id string) error {
	if id != r.snap {
		return atoll.E("remove snapshot", id, atoll.ErrNotExist, nil)
	}
	return atoll.Errorf("remove snapshot", id, atoll.ErrExhausted, "%s was asked for %s", r.name, id)
}

func TestImages(t *testing.T) {
	p := newRouter(t, router.Options{}, renamedMember(t, "one", ""), renamedMember(t, "two", ""))
	for _, spec := range []atoll.Spec{
		{Image: "docker.io/library/app:latest"}, {Image: "docker.io/library/app:latest", Provider: "two"},
		{Image: "a:1"}, {Image: "b:1", Provider: "two"}, {Image: "c:1"}, {Image: "d:1", Provider: "two"},
	} {
		if err := p.Prepare(t.Context(), &spec, nil); err != nil {
			t.Fatal(err)
		}
	}
	wantImages := func(want string) {
		t.Helper()
		all, err := p.Images(t.Context())
		var got []string
		for _, img := range all {
			got = append(got, img.Ref)
		}
		if s := strings.Join(got, " "); err != nil || s != want {
			t.Errorf("Images: %q, %v; want %q", s, err, want)
		}
	}
	wantImages("a:1 b:1 c:1 d:1 docker.io/library/app:latest docker.io/library/app:latest")
	for _, ref := range []string{"app", "app:latest", "library/app", "docker.io/library/app:latest"} {
		wantError(t, ref, p.RemoveImage(t.Context(), ref, false), atoll.ErrConflict, "both one and two have it: write one="+ref+" or two="+ref)
	}
	wantError(t, "none", p.RemoveImage(t.Context(), "none:1", false), atoll.ErrNotExist, "")
	for _, ref := range []string{"a:1", "b:1", "one=docker.io/library/app:latest"} {
		if err := p.RemoveImage(t.Context(), ref, false); err != nil {
			t.Errorf("RemoveImage(%s): %v", ref, err)
		}
	}
	wantImages("c:1 d:1 docker.io/library/app:latest")
	_, err := atoll.PruneImages(t.Context(), p, atoll.PruneOptions{All: true, Provider: "three"})
	wantError(t, "PruneImages", err, atoll.ErrInvalid, `provider "three" not found`)
	if _, err := atoll.PruneImages(t.Context(), p, atoll.PruneOptions{All: true, Provider: "one"}); err != nil {
		t.Error(err)
	}
	wantImages("d:1 docker.io/library/app:latest")
	if pruned, err := atoll.PruneImages(t.Context(), p, atoll.PruneOptions{All: true}); err != nil || len(pruned.Images) != 2 {
		t.Errorf("PruneImages: %+v, %v", pruned, err)
	}
	wantImages("")
}

// The member that has the snapshot creates the sandbox.
func TestSnapshots(t *testing.T) {
	id := atoll.NewID()
	p := newRouter(t, router.Options{}, mockMember(t), renamedMember(t, "two", id), renamedMember(t, "three", atoll.NewID()), brokenMember("docker"))
	_, err := p.Create(t.Context(), &atoll.Spec{Snapshot: id})
	wantError(t, "Create", err, atoll.ErrExhausted, "two was asked for "+id)
	_, err = p.Create(t.Context(), &atoll.Spec{Snapshot: id, Provider: "mock"})
	wantError(t, "Create at another member", err, atoll.ErrUnsupported, "snapshots")
	_, err = p.Create(t.Context(), &atoll.Spec{Snapshot: atoll.NewID()})
	wantError(t, "Create of an unknown snapshot", err, atoll.ErrUnsupported, "snapshots")
	if all, err := p.Snapshots(t.Context()); len(all) != 2 || err != nil {
		t.Errorf("Snapshots: %+v, %v", all, err)
	}
	wantError(t, "RemoveSnapshot", p.RemoveSnapshot(t.Context(), id), atoll.ErrExhausted, "two was asked")
	wantError(t, "RemoveSnapshot of an unknown id", p.RemoveSnapshot(t.Context(), atoll.NewID()), atoll.ErrNotExist, "")
}

func TestProbe(t *testing.T) {
	p := newRouter(t, router.Options{}, mockMember(t), brokenMember("docker"))
	if probe := p.Probe(t.Context()); !probe.OK || len(probe.Notes) > 0 {
		t.Errorf("Probe: %+v", probe)
	}
	p.Create(t.Context(), &atoll.Spec{Provider: "docker"}) // fails, so docker still has no sandboxes
	if probe := p.Probe(t.Context()); len(probe.Notes) > 0 {
		t.Errorf("Probe: %+v", probe)
	}
}
