package native

import (
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/native/internal/mac"
)

// Options configure the provider. Dir is required; zero fields mean defaults. Options of Linux that are missing have no meaning here:
// there are no images, no supervisors and no limits.
type Options struct {
	// Dir holds sandboxes and volumes. New makes it if it is missing; it must belong to this user alone. Many providers, in many
	// processes, may share one directory: each owns the sandboxes that it created.
	Dir string
	// HostPaths are absolute paths of the host that programs can read, in addition to the system's programs and libraries.
	HostPaths []string
	// HostNetwork lets sandboxes have the mode on, which here is the network of the host, with its own ports and all that it reaches.
	HostNetwork bool
	// Log receives log messages. Default: they are discarded.
	Log *slog.Logger
}

// A Provider makes sandboxes. Their processes end with this program.
type Provider struct{ *mac.Provider }

// New opens the state directory. It does not check whether sandboxes work here: Probe does, and the first command. Kinds:
// ErrInvalid, ErrDenied.
func New(opts Options) (*Provider, error) {
	if err := checkHostPaths(opts.HostPaths); err != nil {
		return nil, err
	}
	version, _ := unix.Sysctl("kern.osproductversion") // for people; "" if macOS does not say it
	p, err := mac.New(mac.Options{
		Dir: opts.Dir, HostPaths: opts.HostPaths, HostNetwork: opts.HostNetwork, Version: version, Log: opts.Log,
	})
	if err != nil {
		return nil, err
	}
	return &Provider{p}, nil
}

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Prober   = (*Provider)(nil)
)
