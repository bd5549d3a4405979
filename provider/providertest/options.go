package providertest

import (
	"context"
	"net"
	"os/exec"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// An Option configures Run, Bench, FuzzModel, EachFault or CheckLeaks.
type Option func(*config)

// A config holds the options.
type config struct {
	slow     float64
	image    string
	pullable string
	count    int
	except   map[string]string
	only     []string
	without  map[string]string // reasons by group
	wire     []string          // groups
	shared   []string
	beside   map[string]int // promises at once, by group
	rest     string         // reason to skip the groups that Only leaves out
	leaks    func(t *testing.T) []string
	reopen   func(t *testing.T, p atoll.Provider) atoll.Provider

	source    *source
	moving    func(t *testing.T, text string) string
	debian    func(t *testing.T) string
	network   *backendNetwork
	repo      *repository
	elsewhere func(t *testing.T) (maker *exec.Cmd, open func() atoll.Provider)
	crash     func(t *testing.T, p atoll.Provider, sb atoll.Sandbox)
	steps     func(t *testing.T, step func(name string) error) atoll.Provider
}

// newConfig returns the config of the options.
func newConfig(opts []Option) *config {
	c := &config{slow: 2, count: 20, except: map[string]string{}, without: map[string]string{}, beside: map[string]int{}}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// Slow multiplies every time limit of the suite by factor, for backends that are slower than a process
// on an idle machine. The default is 2.
func Slow(factor float64) Option { return func(c *config) { c.slow = factor } }

// Image sets the image of sandboxes, for providers without a usable default image.
func Image(ref string) Option { return func(c *config) { c.image = ref } }

// PullableImage sets the full name of an image that the provider can fetch and create sandboxes from. The
// promises about images need it. If the provider has an ImageStore, the suite may remove this image and
// every other image without a sandbox.
func PullableImage(ref string) Option { return func(c *config) { c.pullable = ref } }

// Count sets the number of sandboxes that the suite creates at once. The default is 20.
func Count(n int) Option { return func(c *config) { c.count = n } }

// Except skips the subtest called name ("group/promise") and prints reason. An unknown name fails the
// run, so that no exception outlives its promise.
func Except(name, reason string) Option {
	return func(c *config) { c.except[name] = reason }
}

// Only runs no groups but the given ones, for a backend for which another test runs the others. An
// unknown name fails the run.
func Only(groups ...string) Option { return func(c *config) { c.only = groups } }

// SkipGroups skips the given groups and prints reason, for a backend for which another test runs them. An
// unknown name fails the run.
func SkipGroups(reason string, groups ...string) Option {
	return func(c *config) {
		for _, name := range groups {
			c.without[name] = reason
		}
	}
}

// Shared runs the promises of the given groups with one provider, and in one sandbox if a promise needs
// only a sandbox with default settings. The suite cleans that sandbox up after each promise. Use it for
// backends that take seconds to create a sandbox. The suite looks for leaks at the end of the group.
func Shared(groups ...string) Option { return func(c *config) { c.shared = groups } }

// Parallel runs the promises of the given groups in parallel, n at a time, each with its own provider.
// Use it for backends that take long to create a sandbox without using the CPUs. The providers must not
// see one another's sandboxes. The suite looks for leaks at the end of the group. Groups faults and
// steps look for leaks more often and cannot run in parallel.
func Parallel(n int, groups ...string) Option {
	return func(c *config) {
		for _, name := range groups {
			c.beside[name] = n
		}
	}
}

// SkipRest skips the groups that Only leaves out, and prints reason, instead of hiding them.
func SkipRest(reason string) Option { return func(c *config) { c.rest = reason } }

// Leaks tells the suite how to list the objects of the provider's backend on this machine, such as
// containers, cgroups, namespaces and directories. The suite calls list before a subtest opens its
// provider and after it has closed it. Objects that only the second list has are leaks. The suite
// itself looks for goroutines, descriptors, child processes and mounts.
func Leaks(list func(t *testing.T) []string) Option {
	return func(c *config) { c.leaks = list }
}

// Reopen tells the suite how to open a second provider value over the same backend state as p, as after
// a restart of p's process. The suite closes the value. A provider with Caps.Survives needs this
// option.
func Reopen(reopen func(t *testing.T, p atoll.Provider) atoll.Provider) Option {
	return func(c *config) { c.reopen = reopen }
}

// ImageSource describes the image that PullableImage names: the path and the content of one of its files. unplug
// makes the image's registry unreachable for the rest of a subtest.
func ImageSource(file, text string, unplug func(t *testing.T)) Option {
	return func(c *config) { c.source = &source{file, text, unplug} }
}

// MovingImage gives the suite an image whose tag moves, besides PullableImage: push stores an image whose file of
// ImageSource holds text, always under the same name, and returns the name.
func MovingImage(push func(t *testing.T, text string) string) Option {
	return func(c *config) { c.moving = push }
}

// A source describes the image of option ImageSource.
type source struct {
	file, text string
	unplug     func(t *testing.T)
}

// Debian tells the suite of an image with Debian and python3, for programs that users run in sandboxes.
// The suite calls push, possibly more than once, when it needs the image.
func Debian(push func(t *testing.T) (ref string)) Option {
	return func(c *config) { c.debian = push }
}

// Network names a network of the backend for atoll.NetworkNamed. dial connects to an address of the
// backend's machine, where ports are published.
func Network(name string, dial func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(c *config) { c.network = &backendNetwork{name, dial} }
}

// A backendNetwork is the network of option Network.
type backendNetwork struct {
	name string
	dial func(ctx context.Context, address string) (net.Conn, error)
}

// Repository names a git repository that the provider can clone from source, and the path and the
// content of one of its files, which is not at the top.
func Repository(source, file, text string) Option {
	return func(c *config) { c.repo = &repository{source, file, text} }
}

// A repository is the git repository of option Repository.
type repository struct{ source, file, text string }

// OtherProcess tells the suite how to have another process create a sandbox. start returns a command that
// is not started yet and calls Make with a provider over a separate state, and a function that opens a
// provider over that state in this process. The suite kills the command and closes the provider.
func OtherProcess(start func(t *testing.T) (maker *exec.Cmd, open func() atoll.Provider)) Option {
	return func(c *config) { c.elsewhere = start }
}

// CrashSandbox tells the suite how to kill a running sandbox from outside, for example by killing its virtual
// machine or its supervisor.
func CrashSandbox(kill func(t *testing.T, p atoll.Provider, sb atoll.Sandbox)) Option {
	return func(c *config) { c.crash = kill }
}

// FailSteps tells the suite how to open a provider that calls step before each step of creating or starting
// a sandbox that can fail. If step returns an error, the provider must act as if that step had failed
// with it. name is for messages. A provider may ask ahead for the steps of a process that it starts.
func FailSteps(open func(t *testing.T, step func(name string) error) atoll.Provider) Option {
	return func(c *config) { c.steps = open }
}
