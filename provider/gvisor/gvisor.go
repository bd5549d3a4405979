//go:build linux

// Package gvisor provides sandboxes that run on gVisor, an application kernel
// written in Go, which is compiled in: there is nothing to install, and
// neither root, nor KVM, nor a daemon, nor an image is needed.
//
// The binary must be linked statically (CGO_ENABLED=0), because it executes itself
// again as the supervisor of each sandbox, as gVisor's sentry and as its gofer.
// Importing this package suffices: it takes over such a process
// before main.
package gvisor

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/imagestore"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
)

// Options configure the provider. Dir is required; zero fields mean defaults.
type Options struct {
	// Dir holds sandboxes, volumes, snapshots and images. New makes it if it is missing; it
	// must belong to this user alone. Many providers, in many processes, may share one
	// directory.
	Dir string
	// RunDir holds data that must not survive a reboot, and must belong to this user alone.
	// New makes it if it is missing. Default: below $XDG_RUNTIME_DIR, if that belongs to
	// this user, else /run for root, else /run/user/UID if it exists, else the temporary
	// directory.
	RunDir string
	// Helper is the static binary that is executed as supervisor: cmd/atoll-engine, or another program that imports
	// package engine. Default: the engine that this program has inside, if it is built with the tag embedengine, else this
	// program.
	Helper string
	// BuildHelper makes the first Create of a binary with cgo build a Helper in Dir, if there is
	// none: it runs go install for the atoll of this module's version.
	BuildHelper bool
	// Platform is gVisor's platform: "systrap" (default) or "kvm".
	Platform string
	// Spare keeps one supervisor process started ahead of the next Create, which then saves
	// that time: for servers, not for programs that make one sandbox.
	Spare bool
	// Stock is the most sandboxes that boot ahead of Create, for servers; their number follows
	// the demand. 0 means none. A Create gets one if it asks for the image "host", no network,
	// no mounts, and limits that the stock has. The sandbox gets all else of the spec then.
	Stock int
	// StockResources are the limits of these sandboxes, as far as this machine can enforce them.
	// The stock learns others, which are asked for twice within an hour.
	StockResources atoll.Resources
	// HasRoom reports whether the machine has room for a second booted sandbox, or one more;
	// nil means always.
	HasRoom func() bool
	// HostPaths are absolute paths of the host that the image "host" shows, read-only, in
	// addition to the system's programs and libraries.
	HostPaths []string
	// Image configures the image store.
	Image image.Options
	// Cgroup is the prefix of the names of the sandboxes' cgroups. Default: "atoll-" and a
	// hash of Dir, because callers choose ids, and sandboxes in two state directories may
	// have the same id.
	Cgroup string
	// Debug makes gVisor write its own logs into the sandbox's directory.
	Debug bool
	// Log receives log messages. Default: they are discarded.
	Log *slog.Logger

	step func(name string) error // test hook: called before each step of making and starting a sandbox, may fail it
}

// A Provider makes gVisor sandboxes.
type Provider struct {
	*imagestore.Provider
}

// New opens the state directory. It does not check whether sandboxes work here: Probe does,
// and Create reports it.
func New(opts Options) (*Provider, error) {
	for _, path := range opts.HostPaths {
		if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
			return nil, atoll.Errorf("gvisor", "", atoll.ErrInvalid, "host path %q: must be an absolute path other than /", path)
		}
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Platform == "" {
		opts.Platform = "systrap"
	}
	groups := cgroup.Open(cgroup.Root).FindBase()
	info := atoll.Info{Name: "gvisor", Isolation: atoll.IsolationKernel, Version: Version(), Caps: detectCaps(groups)}
	images := imagestore.NewBackend(imagestore.Options{
		Store: opts.Image, Users: info.Caps.Users, HostEnv: func() []string { return hostroot.Env(os.Environ(), opts.HostPaths) },
	})
	p, err := supervised.New(supervised.Options{
		Info: info, Backend: &backend{images, opts, info.Caps, groups}, Supervisor: plan.SupervisorArgv0, Steps: plan.Steps(),
		Dir: opts.Dir, RunDir: opts.RunDir, Spare: opts.Spare, Starts: runtime.NumCPU() + 1, Log: opts.Log, Step: opts.step,
		Stock:   supervised.Stock{Max: opts.Stock, Spec: atoll.Spec{Resources: opts.StockResources}, Image: imagestore.Host, HasRoom: opts.HasRoom},
		Cgroups: groups.Path, Cgroup: opts.Cgroup,
	})
	if err != nil {
		return nil, err
	}
	return &Provider{imagestore.NewProvider(p, images)}, nil
}

// Version returns the version of the gVisor module that is compiled in.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "gvisor.dev/gvisor" {
				return dep.Version
			}
		}
	}
	return "unknown"
}

var (
	_ atoll.Provider      = (*Provider)(nil)
	_ atoll.Preparer      = (*Provider)(nil)
	_ atoll.ImageStore    = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
