// Package layer defines the order in which layers wrap providers. The layers are the packages
// below it; package config wraps them around the configured providers.
package layer

import (
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll"
)

// A Link is a layer in a chain.
type Link struct {
	Name string
	Why  string // the reason for its place in the chain
}

// Each is the chain around each provider, innermost layer first.
var Each = []Link{
	{"registry", "records the intention directly before it calls the provider"},
	{"pool", "creates warm sandboxes, which the registry records like all others"},
	{"limit", "completes a spec before a pool looks for a matching sandbox"},
	{"trace", "measures the provider together with the layers around it"},
}

// All is the chain around the router over all providers, innermost layer first.
var All = []Link{
	{"workspace", "turns a workspace into mounts and files for any provider"},
	{"trace workspaces", "measures workspace calls, which do not reach a provider"},
	{"session", "creates sandboxes that may have a workspace"},
	{"trace sessions", "measures session calls, which do not reach a provider"},
	{"authz", "hides other projects from a caller before another layer sees the call"},
	{"audit", "also records calls that authz denies"},
	{"system", "hides from callers what the other layers remember about a sandbox"},
}

// A Wrapper wraps a layer around a provider. Close of the result must close the provider.
type Wrapper func(atoll.Provider) (atoll.Provider, error)

// Wrap wraps the layers of a chain around p, in order. It omits layers without a wrapper. If a
// wrapper fails, Wrap closes everything that it has wrapped, including p.
func Wrap(p atoll.Provider, chain []Link, wrappers map[string]Wrapper) (atoll.Provider, error) {
	used := 0
	for _, link := range chain {
		wrap := wrappers[link.Name]
		if wrap == nil {
			continue
		}
		used++
		wrapped, err := wrap(p)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p = wrapped
	}
	if used < len(wrappers) {
		return nil, errors.Join(fmt.Errorf("%d of %d layers have no place in the chain", len(wrappers)-used, len(wrappers)), p.Close())
	}
	return p, nil
}

// Always returns a Wrapper that never fails.
func Always(wrap func(atoll.Provider) atoll.Provider) Wrapper {
	return func(p atoll.Provider) (atoll.Provider, error) { return wrap(p), nil }
}
