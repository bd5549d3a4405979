package providertest_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// newLeaf returns a provider that keeps its promises.
func newLeaf(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// plainLayer is a layer that changes nothing.
type plainLayer struct{ atoll.ProviderLayer }

func TestLayer(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return plainLayer{atoll.ProviderLayer{Provider: p}} })
}

func TestFaulty(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		return providertest.Faulty(newLeaf(t), providertest.FailCall(0))
	}, providertest.Only("exec", "output", "time", "tree", "tty", "files", "sub", "watch", "errors", "caps", "dial"), providertest.WireOnly()) // Faulty forwards all calls
}

func TestFailCall(t *testing.T) {
	for nth := range 4 {
		plan := providertest.FailCall(nth)
		p := providertest.Faulty(newLeaf(t), plan)
		defer p.Close()
		for call := 1; call <= 3; call++ {
			_, err := p.List(t.Context(), atoll.Filter{})
			if got, want := atoll.KindOf(err) == atoll.ErrUnavailable, call == nth; got != want {
				t.Errorf("FailCall(%d), call %d: error %v", nth, call, err)
			}
			if got, want := plan.Fired(), nth != 0 && call >= nth; got != want {
				t.Errorf("FailCall(%d), after call %d: Fired() = %v", nth, call, got)
			}
		}
		if want := []string{"Provider.List", "Provider.List", "Provider.List"}; !slices.Equal(plan.Calls(), want) {
			t.Errorf("Calls() = %q, want %q", plan.Calls(), want)
		}
	}
}

func TestEachFault(t *testing.T) {
	var failed [][]string
	providertest.EachFault(t, func(t *testing.T, plan *providertest.Plan) {
		p := providertest.Faulty(newLeaf(t), plan)
		t.Cleanup(func() {
			p.Close()
			failed = append(failed, plan.Calls())
		})
		sb, err := p.Create(t.Context(), &atoll.Spec{})
		if err != nil {
			return
		}
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err == nil {
			return
		}
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove, tried again: %v", err)
		}
	})
	want := [][]string{
		{"Provider.Create"},
		{"Provider.Create", "Sandbox.Remove", "Sandbox.Remove"},
		{"Provider.Create", "Sandbox.Remove"},
	}
	if !slices.EqualFunc(failed, want, slices.Equal) {
		t.Errorf("the runs made the calls %q, want %q", failed, want)
	}
}

func FuzzModel(f *testing.F) { providertest.FuzzModel(f, newLeaf) }

// A countingProvider counts the sandboxes that it creates.
type countingProvider struct {
	atoll.ProviderLayer
	made *atomic.Int64
}

func (c countingProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	c.made.Add(1)
	return c.ProviderLayer.Create(ctx, spec)
}

// A storelessProvider leaves images to an orchestrator, and does not know which ones that has.
type storelessProvider struct{ atoll.ProviderLayer }

func (s storelessProvider) Info() atoll.Info {
	info := s.Provider.Info()
	info.Caps.ImageStore = false
	return info
}

func (storelessProvider) Prepare(context.Context, *atoll.Spec, func(atoll.Progress)) error {
	return nil
}

func (storelessProvider) Images(context.Context) ([]atoll.Image, error) {
	return nil, atoll.E("images", "", atoll.ErrUnsupported, nil)
}

func (storelessProvider) RemoveImage(_ context.Context, ref string, _ bool) error {
	return atoll.E("remove image", ref, atoll.ErrUnsupported, nil)
}

func (storelessProvider) PruneImages(context.Context, atoll.PruneOptions) (atoll.Pruned, error) {
	return atoll.Pruned{}, atoll.E("prune images", "", atoll.ErrUnsupported, nil)
}

// A provider can accept images without an image store.
func TestWithoutImageStore(t *testing.T) {
	providertest.Run(t, onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return storelessProvider{atoll.ProviderLayer{Provider: p}}
	}), providertest.PullableImage("docker.io/library/app:1"), providertest.Only("images"), providertest.SkipRest("they do not need images"))
}

// Promises that share a sandbox pass, and need far fewer sandboxes.
func TestShared(t *testing.T) {
	made := func(opts ...providertest.Option) int64 {
		var n atomic.Int64
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			p, err := local.New(local.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			return countingProvider{atoll.ProviderLayer{Provider: p}, &n}
		}, append(opts, providertest.Only("output", "time"))...)
		return n.Load()
	}
	alone, shared := made(), made(providertest.Shared("output", "time"))
	t.Logf("%d sandboxes, and %d with Shared", alone, shared)
	if shared > alone/2 {
		t.Errorf("%d sandboxes without Shared, and %d with it", alone, shared)
	}
}

// Parallel runs all promises, the given number at once.
func TestBeside(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		count := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			now += by
			most = max(most, now)
		}
		count(1)
		t.Cleanup(func() { count(-1) })
		p, err := local.New(local.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.Only("exec"), providertest.Parallel(3, "exec"))
	if most != 3 {
		t.Errorf("%d at once, want 3", most)
	}
}

// Wire reduces only the given groups to the promises about the wire.
func TestWire(t *testing.T) {
	names := func(opts ...providertest.Option) map[string][]string {
		run := map[string][]string{}
		providertest.Run(t, func(t *testing.T) atoll.Provider {
			parts := strings.Split(t.Name(), "/")
			group, _, _ := strings.Cut(parts[len(parts)-2], "#") // the test runs the suite twice
			run[group] = append(run[group], parts[len(parts)-1])
			return newLeaf(t)
		}, append(opts, providertest.Only("tty", "errors"))...)
		return run
	}
	all, some := names(), names(providertest.WireOnly("tty", "exec"))
	if !slices.Equal(some["errors"], all["errors"]) {
		t.Errorf("Wire changed the promises of another group to %q, want %q", some["errors"], all["errors"])
	}
	want := []string{"Resize_arrives,_and_SIGWINCH_with_it", "^C_interrupts", "a_main_process_may_have_a_terminal"}
	if !slices.Equal(some["tty"], want) || len(all["tty"]) <= len(want) || len(some["exec"]) > 0 {
		t.Errorf("with Wire it ran %q, want %q; and %q", some["tty"], want, some["exec"])
	}
}
