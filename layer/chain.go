// Package layer has the order in which layers wrap providers. The layers are the packages
// below it; package config wraps them around the configured providers.
package layer

import (
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll"
)

// A Link is one place in a chain of layers.
type Link struct {
	Name string
	Why  string // it has this place
}

// Each is the chain around each provider, the innermost layer first.
var Each = []Link{
	{"registry", "records what is about to happen right before the provider is asked"},
	{"pool", "keeps warm sandboxes, which the registry records like all others"},
	{"limit", "completes a spec before a pool looks for its like"},
	{"trace", "measures the provider together with what Atoll does for it"},
}

// All is the chain around the router over all providers, the innermost layer first.
var All = []Link{
	{"workspace", "turns a workspace into mounts and files, whichever provider makes the sandbox"},
	{"trace workspaces", "measures calls about workspaces, which no provider sees"},
	{"session", "makes sandboxes that may have a workspace"},
	{"trace sessions", "measures calls about sessions, which no provider sees"},
	{"authz", "hides other projects from a caller before anything else sees the call"},
	{"audit", "records what authz refuses, too"},
}

// A Wrapper wraps a layer around a provider, whose Close then closes both.
type Wrapper func(atoll.Provider) (atoll.Provider, error)

// Wrap wraps the layers of a chain around p in their order. It leaves out those without a
// wrapper. If a wrapper fails, Wrap closes what it has wrapped, p included.
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

// Always is a Wrapper that doesn't fail.
func Always(wrap func(atoll.Provider) atoll.Provider) Wrapper {
	return func(p atoll.Provider) (atoll.Provider, error) { return wrap(p), nil }
}
