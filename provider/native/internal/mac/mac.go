//go:build unix

// Package mac is the provider native on macOS: its sandboxes are work directories, and processes of this machine behind walls of
// Seatbelt. It builds on other Unix systems, too, where its tests replace the program that makes the walls.
package mac

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/provider/internal/hostprocess"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
	"github.com/seed46cd37a8/atoll/provider/native/internal/seatbelt"
)

// Options configure a Provider. Dir is required.
type Options struct {
	Dir         string                  // for this provider alone; created if missing
	HostPaths   []string                // absolute paths that programs read, in addition to those of the system
	HostNetwork bool                    // sandboxes may have the network of the machine
	Version     string                  // of the system
	Log         *slog.Logger            // nil discards
	Program     string                  // makes the walls, with the arguments of sandbox-exec; default: seatbelt.Program
	Unchecked   bool                    // trust Program without a test of its walls
	Step        func(name string) error // see inprocess.Options
}

// A Provider is an atoll.Provider.
type Provider struct {
	*inprocess.Provider
	walls *walls
}

// New returns a provider over opts.Dir with the sandboxes of earlier programs. It does not check whether walls work here: Probe
// does, and the first command. Kinds: ErrInvalid, ErrDenied.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, atoll.Errorf("open", "native", atoll.ErrInvalid, "Options.Dir is required")
	}
	w, err := newWalls(opts)
	if err != nil {
		return nil, atoll.E("open", "native", atoll.ErrInvalid, err)
	}
	backend := hostprocess.New(w.dir)
	backend.Env, backend.Wrap, backend.Ended = w.buildEnv, w.wrapCommand, w.removeTemp
	caps := detectCaps(opts.HostNetwork)
	p, err := inprocess.New(inprocess.Options{
		Info:  atoll.Info{Name: "native", Isolation: atoll.IsolationProfile, Version: opts.Version, Caps: caps},
		Image: "host", Backend: backend, Dir: w.dir, Log: opts.Log, Step: opts.Step, Advice: advice,
		Caps: func(spec *atoll.Spec) atoll.Caps {
			caps := caps
			caps.Dial = hasNetwork(spec)
			return caps
		},
	})
	if err != nil {
		return nil, err
	}
	return &Provider{p, w}, nil
}

// detectCaps returns what sandboxes can do. Seatbelt has no limits; and a network that it opens is that of the machine, with all
// that the machine reaches.
func detectCaps(network bool) atoll.Caps {
	return atoll.Caps{
		Restart: true, Durable: atoll.DurableCrash, ExitSignal: true, Extend: true, TTY: true, Files: true, Dial: network,
		Volumes: true, VolumeLocks: true, NetworkNone: true, NetworkOn: network,
	}
}

func hasNetwork(spec *atoll.Spec) bool { return spec.Network.Mode == atoll.NetworkOn }

// noLimits is the advice for limits.
const noLimits = "macOS enforces none for native: use vmdocker, or leave it out"

// advice says what to do instead of what sandboxes cannot do, by cap.
var advice = map[string]string{
	"images":         "every sandbox has the programs of this Mac: use vmdocker or docker",
	"bind_mounts":    "copy the files (atoll cp), or name the path in native.host_paths",
	"tmpfs":          "TMPDIR is a directory of the sandbox",
	"users":          "processes run as the user of Atoll",
	"read_only_root": "programs write in the work directory and in TMPDIR only",
	"memory_limit":   noLimits,
	"cpu_limit":      noLimits,
	"process_limit":  noLimits,
	"disk_limit":     noLimits,
	"network_on":     "Seatbelt cannot close addresses of this Mac and its networks: use microvm or vmdocker, or open all with native.host_network",
	"egress":         "Seatbelt knows neither names nor addresses: use microvm",
	"network_named":  "use docker",
	"publish":        "use vmdocker",
	"idle_stop":      "set a time to live (--ttl)",
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if hasNetwork(spec) && len(spec.Network.Allow) > 0 {
		return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "provider native on macOS has no lists of hosts: leave out --allow, which %s", advice["egress"])
	}
	return p.Provider.Create(ctx, spec)
}

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe {
	if err := p.walls.checkWall(ctx); err != nil {
		return atoll.Probe{Reason: err.Error(), Fix: "use vmdocker or docker (--provider vmdocker)"}
	}
	notes := []string{
		"its wall is Seatbelt, which Apple calls deprecated and still ships; the authors of Atoll built it for macOS and have not run it there",
		"limits on memory, CPU and processes are not enforced; programs can read the environment of your other programs",
	}
	if p.Info().Caps.NetworkOn {
		notes = append(notes, "native.host_network is on: with --network on, programs reach everything that this Mac reaches, and its own ports")
	}
	return atoll.Probe{OK: true, Notes: notes}
}

// A walls makes walls, and the temporary directories behind them.
type walls struct {
	program string
	dir     string   // of the provider
	read    []string // Options.HostPaths
	hidden  []string

	mu      sync.Mutex
	checked bool // walls work here
}

// newWalls returns the walls of a provider. Kinds: none.
func newWalls(opts Options) (*walls, error) {
	w := &walls{program: opts.Program, checked: opts.Unchecked}
	if w.program == "" {
		w.program = seatbelt.Program
	}
	var err error
	if w.dir, err = seatbelt.Resolve(opts.Dir); err != nil {
		return nil, err
	}
	w.hidden = []string{w.dir}
	if home, err := os.UserHomeDir(); err == nil {
		for _, name := range []string{"Library/Keychains", ".gnupg", ".ssh"} {
			hidden, err := seatbelt.Resolve(filepath.Join(home, name))
			if err != nil {
				return nil, err
			}
			w.hidden = append(w.hidden, hidden)
		}
	}
	for _, path := range opts.HostPaths {
		real, err := seatbelt.Resolve(path)
		if err != nil {
			return nil, err
		}
		for _, hidden := range append([]string{seatbelt.Keychains}, w.hidden...) {
			if real == hidden || strings.HasPrefix(real, hidden+"/") {
				return nil, errors.New("host path " + path + ": keys, passwords and other sandboxes stay closed: leave it out")
			}
		}
		w.read = append(w.read, real)
	}
	_, err = w.commonPolicy().Profile()
	return w, err
}

// commonPolicy returns the policy that all sandboxes have in common.
func (w *walls) commonPolicy() seatbelt.Policy {
	return seatbelt.Policy{Read: w.read, Hidden: w.hidden}
}

// tempDir returns the temporary directory of a sandbox, which exists while it runs.
func (w *walls) tempDir(id string) string { return filepath.Join(w.dir, "tmp", id) }

// removeTemp removes the temporary directory of a sandbox.
func (w *walls) removeTemp(id string) error { return fsutil.RemoveAll(w.tempDir(id)) }

// buildEnv implements hostprocess.Backend.Env. Homebrew's programs come before those of macOS.
func (w *walls) buildEnv(pl *inprocess.Place) []string {
	return []string{"PATH=/opt/homebrew/bin:/opt/homebrew/sbin:" + hostprocess.Path, "TMPDIR=" + w.tempDir(pl.ID)}
}

// wrapCommand implements hostprocess.Backend.Wrap. Kinds: ErrUnavailable.
func (w *walls) wrapCommand(ctx context.Context, pl *inprocess.Place) ([]string, error) {
	if err := w.checkWall(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, atoll.E("exec", pl.ID, atoll.ErrUnavailable, err)
	}
	temp := w.tempDir(pl.ID)
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return nil, err
	}
	policy := w.commonPolicy()
	policy.Write = append([]string{pl.Dir, temp}, pl.Linked...)
	policy.Network = hasNetwork(pl.Spec)
	profile, err := policy.Profile()
	if err != nil {
		return nil, err
	}
	return []string{w.program, "-p", profile}, nil
}

// checkWall tests a wall, unless one has passed the test before.
func (w *walls) checkWall(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checked {
		return nil
	}
	if _, err := os.Stat(w.program); errors.Is(err, fs.ErrNotExist) {
		return errors.New(w.program + " does not exist")
	}
	dir, err := os.MkdirTemp(w.dir, "check-")
	if err != nil {
		return err
	}
	defer func() { _ = fsutil.RemoveAll(dir) }() // the next check has a directory of its own
	err = seatbelt.Check(ctx, dir, w.runInside)
	w.checked = err == nil
	return err
}

// runInside runs a command behind the wall of a profile. Its error has what the command wrote.
func (w *walls) runInside(ctx context.Context, profile string, args ...string) error {
	out, err := exec.CommandContext(ctx, w.program, append([]string{"-p", profile}, args...)...).CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil && text != "" {
		return errors.New(text)
	}
	return err
}

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Prober   = (*Provider)(nil)
)
