// Package local is a provider of sandboxes that are none: their processes are
// plain processes of this machine, with all the rights of the calling program.
// It is for development only, for trusted commands, and for use inside of what
// is a sandbox already.
//
// A sandbox's work directory is its data volume, {Dir}/volumes/{project}/data-{id}.
// To a caller it is called /work, also in Files; its processes see the
// machine's own paths and begin there. A named volume can be mounted below the
// work directory only, where it is a symbolic link.
//
// The processes of a sandbox are found by a variable in their environment, so
// that also one that left its parent, its group and its session ends with its
// sandbox. They end with the program that made them, too; when that is killed,
// New ends what it left.
package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

// Options say where and how. Dir is required.
type Options struct {
	// Dir is for this provider alone: records and volumes. Programs may share
	// it; each answers for the sandboxes that it made, and the volumes of these
	// are in use to all.
	Dir string
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	step func(name string) error // for tests: see inprocess.Options
}

// A Provider is an atoll.Provider.
type Provider struct{ *inprocess.Provider }

// Warning is what everyone who uses this provider is told.
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
		Volumes:    true,
	},
}

// New returns a provider over opts.Dir, which is made if missing, with the
// sandboxes of earlier programs. Kinds: ErrInvalid, ErrDenied, ErrUnavailable
// (not on this system).
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, atoll.Errorf("open", "local", atoll.ErrInvalid, "no directory given")
	}
	if probe := probe(); !probe.OK {
		return nil, atoll.Errorf("open", "local", atoll.ErrUnavailable, "%s", probe.Reason)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, atoll.E("open", "local", atoll.ErrInvalid, err)
	}
	p, err := inprocess.New(inprocess.Options{Info: info, Image: "host", Backend: backend{realmOf(dir)}, Dir: opts.Dir, Log: opts.Log, Step: opts.step})
	if err != nil {
		return nil, err
	}
	if opts.Log != nil {
		opts.Log.Warn("provider local", "reason", Warning)
	}
	return &Provider{p}, nil
}

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe { return probe() }

// backend runs processes of this machine. Their marks have the realm besides the id of
// the sandbox: callers choose ids, and may choose the same for sandboxes of several
// directories.
type backend struct{ realm string }

// realmOf tells directories apart.
func realmOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

// Removed implements inprocess.Backend.
func (backend) Removed(string) {}

var (
	_ inprocess.Backend = backend{}
	_ atoll.Prober      = (*Provider)(nil)
)
