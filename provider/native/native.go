//go:build linux

package native

import (
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/imagestore"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
	"github.com/seed46cd37a8/atoll/provider/native/internal/plan"
)

// Options configure the provider. Dir is required; zero fields mean defaults.
type Options struct {
	// Dir holds sandboxes, volumes and images. New makes it if it is missing; it must belong to this user alone. Many providers, in
	// many processes, may share one directory.
	Dir string
	// RunDir holds data that must not survive a reboot, and must belong to this user alone. New makes it if it is missing. Default:
	// below $XDG_RUNTIME_DIR, if that belongs to this user, else /run for root, else /run/user/UID if it exists, else the temporary
	// directory.
	RunDir string
	// Helper is the binary that is executed as supervisor: cmd/atoll-native, or another program that imports package engine.
	// It must be linked statically. Default: the one that this program has inside, if it is built with the tag embedengine, else this
	// program.
	Helper string
	// Spare keeps one supervisor process started ahead of the next Create, which then saves that time: for servers, not for programs
	// that make one sandbox.
	Spare bool
	// Stock is the most sandboxes that boot ahead of Create, for servers; their number follows the demand. 0 means none. A Create
	// gets one if it asks for the image "host", no network, no mounts, and limits that the stock has. The sandbox gets all else of
	// the spec then.
	Stock int
	// StockResources are the limits of these sandboxes, as far as this machine can enforce them. The stock learns others, which are
	// asked for twice within an hour.
	StockResources atoll.Resources
	// HasRoom reports whether the machine has room for a second booted sandbox, or one more; nil means always.
	HasRoom func() bool
	// HostPaths are absolute paths of the host that the image "host" shows, read-only, in addition to the system's programs and
	// libraries.
	HostPaths []string
	// Nested lets programs make namespaces and mounts, as those do that make sandboxes themselves. More of the kernel can be attacked
	// then, and there is no Landlock.
	Nested bool
	// Image configures the image store.
	Image image.Options
	// Cgroup is the prefix of the names of the sandboxes' cgroups. Default: "atoll-" and a hash of Dir, because callers choose ids, and
	// sandboxes in two state directories may have the same id.
	Cgroup string
	// Log receives log messages. Default: they are discarded.
	Log *slog.Logger

	step func(name string) error // test hook: called before each step of making and starting a sandbox, may fail it
	halt string                  // test hook: the engine's step before which a supervisor stops itself by SIGSTOP
}

// A Provider makes sandboxes.
type Provider struct{ *imagestore.Provider }

// kernelVersion returns the version of the machine's kernel, which runs the sandboxes.
func kernelVersion() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// New opens the state directory. It does not check whether sandboxes work here: Probe does, and Create reports it.
func New(opts Options) (*Provider, error) {
	if err := checkHostPaths(opts.HostPaths); err != nil {
		return nil, err
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	subIDs, noIDs := supervised.FindSubIDs()
	groups := cgroup.Open(cgroup.Root).FindBase()
	caps := detectCaps(opts.Dir, os.Geteuid() == 0 || subIDs != nil, groups)
	info := atoll.Info{Name: "native", Isolation: atoll.IsolationContainer, Version: kernelVersion(), Caps: caps}
	images := imagestore.NewBackend(imagestore.Options{
		Store: opts.Image, Users: info.Caps.Users, HostEnv: func() []string { return hostroot.Env(os.Environ(), opts.HostPaths) },
	})
	p, err := supervised.New(supervised.Options{
		Info: info, Backend: &backend{images, opts, info.Caps, groups, subIDs, noIDs}, SubIDs: subIDs, Supervisor: plan.SupervisorArgv0, Steps: plan.Steps(),
		Dir: opts.Dir, RunDir: opts.RunDir, Spare: opts.Spare, Starts: runtime.NumCPU() + 1, Log: opts.Log, Step: opts.step,
		Stock: supervised.Stock{
			Max: opts.Stock, Spec: atoll.Spec{Resources: opts.StockResources}, Image: imagestore.Host, HasRoom: opts.HasRoom,
		},
		Cgroups: groups.Path, Cgroup: opts.Cgroup,
	})
	if err != nil {
		return nil, err
	}
	return &Provider{imagestore.NewProvider(p, images)}, nil
}

var (
	_ atoll.Provider      = (*Provider)(nil)
	_ atoll.Preparer      = (*Provider)(nil)
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
