package router_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/router"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func mockMember(t *testing.T) router.Member {
	dir := t.TempDir()
	return router.Member{Name: "mock", Open: func() (atoll.Provider, error) { return mock.New(mock.Options{Dir: dir}) }}
}

func localMember(t *testing.T) router.Member {
	dir := t.TempDir()
	return router.Member{Name: "local", Open: func() (atoll.Provider, error) { return local.New(local.Options{Dir: dir}) }}
}

// brokenMember returns a member that cannot be opened.
func brokenMember(name string) router.Member {
	return router.Member{Name: name, Open: func() (atoll.Provider, error) {
		return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "the context is bad")
	}}
}

// faultyMember returns m with calls that fail as planned.
func faultyMember(m router.Member, plan *providertest.Plan) router.Member {
	return router.Member{Name: m.Name, Open: func() (atoll.Provider, error) {
		p, err := m.Open()
		if err != nil {
			return nil, err
		}
		return providertest.Faulty(p, plan), nil
	}}
}

func newRouter(t *testing.T, opts router.Options, members ...router.Member) *router.Provider {
	t.Helper()
	p, err := router.New(members, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func TestConformance(t *testing.T) {
	for name, tt := range map[string]struct {
		members func(t *testing.T) []router.Member
		groups  []string
	}{
		// A single member's watch is passed through, and its caps are the router's.
		"one": {func(t *testing.T) []router.Member { return []router.Member{mockMember(t)} }, []string{"watch", "caps"}},
		// The router finds the member of a sandbox, a name, an image or a volume, and joins what
		// members list and watch. It wraps no sandbox.
		"two": {func(t *testing.T) []router.Member { return []router.Member{mockMember(t), localMember(t)} },
			[]string{"create", "volumes", "images", "watch", "errors", "caps"}},
		// A member that cannot be opened must hide nothing of the others.
		"one that fails": {func(t *testing.T) []router.Member { return []router.Member{mockMember(t), brokenMember("docker")} },
			[]string{"volumes", "watch", "errors", "caps"}},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "two" {
				t.Skip("-short: two members suffice")
			}
			providertest.Run(t, func(t *testing.T) atoll.Provider {
				p, err := router.New(tt.members(t), router.Options{Dir: t.TempDir()})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}, providertest.PullableImage("docker.io/library/app:1"), providertest.Only(tt.groups...))
		})
	}
}
