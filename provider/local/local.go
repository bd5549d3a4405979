// Package local is a provider without isolation: the processes of its sandboxes are plain processes of
// this machine, with all rights of the calling program. Use it only for development, for trusted
// commands, and inside another sandbox.
//
// A sandbox's work directory is its data volume, {Dir}/volumes/{project}/data-{id}. Callers and Files
// call it /work. Its processes see the machine's own paths and start in that directory. A named volume
// can be mounted only below the work directory, where it is a symbolic link.
//
// Each process of a sandbox has a variable in its environment by which the provider finds it. So a
// process ends with its sandbox even if it left its parent, its group and its session. Processes also
// end with the program that created them; if that program is killed, New ends the processes that it
// left.
package local

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

// Options configure a Provider. Dir is required.
type Options struct {
	// Dir holds records and volumes, for this provider alone. Programs may share it: each
	// owns the sandboxes that it created, and none can remove a volume that another uses.
	Dir string
	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	step func(name string) error // for tests: see inprocess.Options
}

// A Provider is an atoll.Provider.
type Provider struct{ *inprocess.Provider }

// Warning is the warning that New logs and Probe returns.
const Warning = "no isolation: commands run as you, on this machine, with your files and network; for development only"

var info = atoll.Info{
	Name:      "local",
	Isolation: atoll.IsolationNone,
	Caps: atoll.Caps{
		Restart:    true,
		Durable:    atoll.DurableCrash,
		ExitSignal: true,
		Extend:     true,
		TTY:        true,
		Files:      true,
		Dial:       true,
		Volumes:    true, VolumeLocks: true,
	},
}

// New returns a provider over opts.Dir, which it creates if missing, with the sandboxes of earlier
// programs. Kinds: ErrInvalid, ErrDenied, ErrUnavailable (not on this system).
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, atoll.Errorf("open", "local", atoll.ErrInvalid, "Options.Dir is required")
	}
	if probe := probeSystem(); !probe.OK {
		return nil, atoll.Errorf("open", "local", atoll.ErrUnavailable, "%s", probe.Reason)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, atoll.E("open", "local", atoll.ErrInvalid, err)
	}
	p, err := inprocess.New(inprocess.Options{Info: info, Image: "host", Backend: newBackend(dir), Dir: opts.Dir, Log: opts.Log, Step: opts.step})
	if err != nil {
		return nil, err
	}
	if opts.Log != nil {
		opts.Log.Warn("provider local", "reason", Warning)
	}
	return &Provider{p}, nil
}

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe { return probeSystem() }

var _ atoll.Prober = (*Provider)(nil)
