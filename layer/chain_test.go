package layer_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer"
)

type fake struct {
	atoll.Provider
	closed *int
}

func (f fake) Close() error { *f.closed++; return nil }

func TestWrap(t *testing.T) {
	var order []string
	wrappers := map[string]layer.Wrapper{}
	for _, link := range layer.All {
		wrappers[link.Name] = layer.Always(func(p atoll.Provider) atoll.Provider {
			order = append(order, link.Name)
			return atoll.ProviderLayer{Provider: p}
		})
	}
	delete(wrappers, "session")
	closed := 0
	p, err := layer.Wrap(fake{closed: &closed}, layer.All, wrappers)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, ", "), "workspace, trace workspaces, trace sessions, authz, audit, system"; got != want {
		t.Errorf("the order is %s, want %s", got, want)
	}
	if p.Close(); closed != 1 {
		t.Errorf("the provider was closed %d times, want once", closed)
	}
}

func TestWrapFails(t *testing.T) {
	broken := errors.New("broken")
	for name, wrappers := range map[string]map[string]layer.Wrapper{
		"a layer":       {"pool": func(atoll.Provider) (atoll.Provider, error) { return nil, broken }},
		"without place": {"other": layer.Always(func(p atoll.Provider) atoll.Provider { return p })},
	} {
		closed := 0
		if _, err := layer.Wrap(fake{closed: &closed}, layer.Each, wrappers); err == nil || name == "a layer" && !errors.Is(err, broken) {
			t.Errorf("%s: error %v", name, err)
		}
		if closed != 1 {
			t.Errorf("%s: the provider was closed %d times, want once", name, closed)
		}
	}
}

// Each layer has a place in a chain. The router is between the chains, and intercept is a tool of layers.
func TestEveryLayerHasAPlace(t *testing.T) {
	dirs, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range append(append([]layer.Link{}, layer.Each...), layer.All...) {
		names = append(names, link.Name)
	}
	for _, dir := range dirs {
		if dir.IsDir() && dir.Name() != "router" && dir.Name() != "intercept" && !strings.Contains(strings.Join(names, " "), dir.Name()) {
			t.Errorf("package %s has no place in a chain", dir.Name())
		}
	}
}
