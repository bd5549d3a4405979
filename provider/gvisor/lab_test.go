//go:build linux

package gvisor_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A lab is a provider for one test, with the test's steps as methods.
type lab struct {
	*supervisedtest.Lab
	*gvisor.Provider
	opts gvisor.Options
}

// newLab opens a provider that is closed when the test ends; anything left then is an
// error.
func newLab(t testing.TB, change ...func(*gvisor.Options)) *lab {
	t.Helper()
	needGVisor(t)
	opts := freshOptions(t)
	for _, f := range change {
		f(&opts)
	}
	return openLab(t, opts)
}

// openLab opens one more provider over the directories in opts.
func openLab(t testing.TB, opts gvisor.Options) *lab {
	t.Helper()
	p, err := gvisor.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return wrapProvider(t, p, opts)
}

// wrapProvider makes a lab of a provider.
func wrapProvider(t testing.TB, p *gvisor.Provider, opts gvisor.Options) *lab {
	return &lab{&supervisedtest.Lab{Provider: p, Places: placesOf(opts), T: t}, p, opts}
}

func placesOf(opts gvisor.Options) supervisedtest.Places {
	return supervisedtest.Places{Dir: opts.Dir, RunDir: opts.RunDir, Cgroup: opts.Cgroup}
}
