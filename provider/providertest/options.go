package providertest

import (
	"context"
	"net"
	"os/exec"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// An Option changes how Run, Bench and FuzzModel go about it.
type Option func(*config)

type config struct {
	slow     float64
	image    string
	pullable string
	count    int
	except   map[string]string
	only     []string
	without  map[string]string // groups, and why they are skipped
	wire     []string          // groups
	shared   []string
	beside   map[string]int // how many promises of a group at once
	rest     string         // why
	leaks    func(t *testing.T) []string
	reopen   func(t *testing.T, p atoll.Provider) atoll.Provider

	source    *source
	debian    func(t *testing.T) string
	network   *backendNetwork
	repo      *repository
	elsewhere func(t *testing.T) (maker *exec.Cmd, open func() atoll.Provider)
	crash     func(t *testing.T, p atoll.Provider, sb atoll.Sandbox)
	steps     func(t *testing.T, step func(name string) error) atoll.Provider
}

func newConfig(opts []Option) *config {
	c := &config{slow: 2, count: 20, except: map[string]string{}, without: map[string]string{}, beside: map[string]int{}}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// Slow multiplies every deadline of the suite by factor, for backends that are
// slower than a process, on a machine that has nothing else to do. Without it, the factor is 2.
func Slow(factor float64) Option { return func(c *config) { c.slow = factor } }

// Image is the image that sandboxes are made of, where the provider's default
// one will not do.
func Image(ref string) Option { return func(c *config) { c.image = ref } }

// Pullable is the full name of an image that can be fetched, and sandboxes made
// from it, for what is promised about images. Where there is an ImageStore it may be
// removed on the way, as may all others that no sandbox uses.
func Pullable(ref string) Option { return func(c *config) { c.pullable = ref } }

// Count sets the number of sandboxes that the suite makes at once. The default is 20.
func Count(n int) Option { return func(c *config) { c.count = n } }

// Except skips the subtest called name ("group/promise"), and prints reason.
// A name that is no subtest's fails the run, so that exceptions do not outlive
// what they were made for.
func Except(name, reason string) Option {
	return func(c *config) { c.except[name] = reason }
}

// Only runs no other groups than those, for a backend of which another test runs
// them all. A name that is no group's fails the run.
func Only(groups ...string) Option { return func(c *config) { c.only = groups } }

// Without skips those groups, for a backend of which another test keeps their promises, and
// prints reason. A name that is no group's fails the run.
func Without(reason string, groups ...string) Option {
	return func(c *config) {
		for _, name := range groups {
			c.without[name] = reason
		}
	}
}

// Shared has the promises of those groups kept with one provider and, wherever the
// plainest sandbox will do, in one sandbox, which is tidied up in between: for backends
// that take seconds to make one. What leaks is looked for when all have been kept.
func Shared(groups ...string) Option { return func(c *config) { c.shared = groups } }

// Beside has the promises of those groups kept beside one another, n at a time, each with
// a provider of its own: for backends that have one wait to make a sandbox, and not for
// its CPUs. Their providers must not see one another's sandboxes. What leaks is looked for
// when all have been kept; groups faults and steps look for it more often, and cannot be
// among those.
func Beside(n int, groups ...string) Option {
	return func(c *config) {
		for _, name := range groups {
			c.beside[name] = n
		}
	}
}

// Rest has the groups that Only leaves out skipped, and says why.
func Rest(reason string) Option { return func(c *config) { c.rest = reason } }

// Leaks tells the suite how to list what the provider's backend holds on this
// machine (containers, cgroups, namespaces, directories, ...). It is called
// before a subtest opens its provider and after it was closed; what is listed
// only then is a leak. The suite itself looks for goroutines, descriptors,
// child processes and mounts.
func Leaks(list func(t *testing.T) []string) Option {
	return func(c *config) { c.leaks = list }
}

// Reopen tells the suite how to make a second provider value over the same
// backend state as p, as after a restart of the process that made p. The suite
// closes it. A provider with Caps.Survives needs it.
func Reopen(reopen func(t *testing.T, p atoll.Provider) atoll.Provider) Option {
	return func(c *config) { c.reopen = reopen }
}

// Source tells more of the image that Pullable names: what one of its files
// holds, and how to make it unreachable for the rest of a subtest.
func Source(file, text string, unplug func(t *testing.T)) Option {
	return func(c *config) { c.source = &source{file, text, unplug} }
}

type source struct {
	file, text string
	unplug     func(t *testing.T)
}

// Debian tells the suite of an image with Debian and python3, for what users run
// in sandboxes; push is called when it is needed, which may be more than once.
func Debian(push func(t *testing.T) (ref string)) Option {
	return func(c *config) { c.debian = push }
}

// Network tells the suite of a network that the backend has, for
// atoll.NetworkNamed, and how to connect to an address of the backend's machine,
// where ports are published.
func Network(name string, dial func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(c *config) { c.network = &backendNetwork{name, dial} }
}

type backendNetwork struct {
	name string
	dial func(ctx context.Context, address string) (net.Conn, error)
}

// Repository tells the suite of a git repository that the provider can clone from
// source, and what one of its files, below the top, holds.
func Repository(source, file, text string) Option {
	return func(c *config) { c.repo = &repository{source, file, text} }
}

type repository struct{ source, file, text string }

// Elsewhere tells the suite how to have a sandbox made by another process, which
// it then kills: start returns a command, not yet started, that calls Make with
// a provider over a state of its own, and what opens a provider over that state
// in this process. The suite closes it.
func Elsewhere(start func(t *testing.T) (maker *exec.Cmd, open func() atoll.Provider)) Option {
	return func(c *config) { c.elsewhere = start }
}

// Crash tells the suite how to kill a running sandbox from outside, as no call
// of the provider does: its machine, its supervisor, or whatever it lives in.
func Crash(kill func(t *testing.T, p atoll.Provider, sb atoll.Sandbox)) Option {
	return func(c *config) { c.crash = kill }
}

// Steps tells the suite how to open a provider that calls step, with a name for
// people, before each step of making and of starting a sandbox that can fail,
// and does as if the step had failed with the error. Steps of others, such as
// those of a process that the provider starts, may be asked for ahead.
func Steps(open func(t *testing.T, step func(name string) error) atoll.Provider) Option {
	return func(c *config) { c.steps = open }
}
