// Package docker is a provider whose sandboxes are containers of a Docker Engine, local or
// remote. The first process of each container is the guest, a small static program of Atoll's.
// The guest starts all other processes and buffers their output. Atoll talks to it over one
// stream that the engine opens, so that a command needs no request to the engine.
//
// The labels of its container hold everything about a sandbox: any number of programs can share
// an engine, and a program that dies loses nothing.
package docker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// Options select the engine and configure its sandboxes. Zero fields mean defaults: those of the command line.
type Options struct {
	// Dir holds the locks that programs on one machine share, and the records of fetched images.
	// New creates it. Default: atoll/docker in $XDG_STATE_HOME, or else in ~/.local/state.
	Dir string
	// Guest returns the guest's program: cmd/atoll-guest, built for the engine's machine. Default: the
	// one in this binary, if it was built with the tag embedguest; else atoll-guest beside it; else the
	// first Create builds one in Dir with the go command, in a directory of a module that requires this one.
	Guest func() ([]byte, error)
	// Plain creates sandboxes without a guest, with nothing but the Engine API and the shell of
	// the image. They can do less, as Info tells, and commands take longer to start. One engine
	// can have sandboxes of both kinds, and any provider serves both.
	Plain bool
	// Host is the engine's address, like DOCKER_HOST; empty means the environment's, or that of
	// the current docker context.
	Host string
	// Dial connects to the engine; nil means to connect to Host. Its connections must have
	// CloseWrite, like those of TCP, TLS and Unix sockets.
	Dial func(ctx context.Context) (net.Conn, error)
	// Fetch returns an image that the engine lacks, in the format of docker save; nil lets the
	// engine pull images. The full name of the image is ref, and its name in the archive is as. With
	// PullAlways, Fetch asks the registry of the image even if it has one by that name.
	// Kinds: those of Create; after ErrUnsupported, the engine pulls the image, without
	// credentials.
	Fetch func(ctx context.Context, ref, as string, policy atoll.PullPolicy, progress func(atoll.Progress)) (io.ReadCloser, error)
	// AllowNetworkOn allows the network mode on. Set it only if the engine's machine filters the traffic
	// of sandboxes. Each sandbox is isolated from the others.
	AllowNetworkOn bool
	// SlowFactor returns how many times slower the engine's machine is than hardware; nil means 1.
	SlowFactor func(ctx context.Context) int
	// Prefix begins the names of all containers, volumes and networks; empty means "atoll".
	// Servers that share an engine but not their sandboxes need different prefixes.
	Prefix string
	// Image is the default image of sandboxes; empty means DefaultImage.
	Image string
	// Runtime is the engine's runtime for containers, such as "runsc" or "kata"; empty means the
	// engine's default.
	Runtime string
	// Log gets errors that no call can return; nil discards them.
	Log *slog.Logger

	step func(name string) error // if not nil, called before each step of a creation; for tests
}

// DefaultImage is the default image of sandboxes.
const DefaultImage = "ubuntu:22.04"

// A Provider is an atoll.Provider.
type Provider struct {
	opts         Options
	log          *slog.Logger
	engine       *client.Client
	names        names
	imageRecords imageRecords
	events       *events
	sweeper      *sweeper.Sweeper
	endWaits     sync.WaitGroup         // goroutines that wait for the ends of sandboxes which are removed then
	exitSlots    chan struct{}          // its capacity limits how many containers end at once
	connections  *guestconn.Connections // connections to guests and to runs without a guest

	mu         sync.Mutex
	closed     bool
	guestReady string          // name of the volume that has the guest's program
	cachedInfo *engineInfo     // nil until the engine has answered
	safeImages map[string]bool // ids of images without a link at a mount point of Atoll's

	awaitedEnds        map[string]bool // ids of sandboxes that a goroutine of endWaits waits for
	lastInstallerSweep time.Time       // when removeInstallers last ran
}

// info describes the provider with an engine that can do everything.
var info = atoll.Info{
	Name:      "docker",
	Isolation: atoll.IsolationContainer,
	Caps: atoll.Caps{
		Restart:      true,
		Durable:      atoll.DurableCrash,
		Survives:     true,
		Reattach:     true,
		ExitSignal:   true,
		IdleStop:     true,
		Extend:       true,
		TTY:          true,
		Files:        true,
		Dial:         true,
		Pause:        true,
		Usage:        true,
		Images:       true,
		ImageStore:   true,
		Users:        true,
		BindMounts:   true,
		Volumes:      true,
		VolumeLocks:  true,
		Tmpfs:        true,
		ReadOnlyRoot: true,
		MemoryLimit:  true,
		CPULimit:     true,
		ProcessLimit: true,
		NetworkNone:  true,
		NetworkNamed: true,
		Publish:      true,
		Cache:        true,
		GPU:          true,
	},
}

// New returns a provider of the engine's sandboxes. It does not connect. Kinds: ErrInvalid.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		state, err := fsutil.StateHome()
		if err != nil {
			return nil, atoll.Errorf("open", "docker", atoll.ErrInvalid, "set Dir: %w", err)
		}
		opts.Dir = filepath.Join(state, "atoll", "docker")
	}
	if opts.Guest == nil {
		dir := filepath.Dir(opts.Dir)
		opts.Guest = sync.OnceValues(func() ([]byte, error) { return guestprogram.Load("", dir) })
	}
	if opts.Prefix == "" {
		opts.Prefix = "atoll"
	}
	if !atoll.ValidName(opts.Prefix) {
		return nil, atoll.Errorf("open", "docker", atoll.ErrInvalid, "prefix %q: use a letter or digit, then letters, digits, '-' or '_'", opts.Prefix)
	}
	if opts.Image == "" {
		opts.Image = DefaultImage
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(filepath.Join(opts.Dir, "locks"), 0o700); err != nil {
		return nil, atoll.E("open", opts.Dir, atoll.KindOf(err), err)
	}
	engine, err := newClient(opts)
	if err != nil {
		return nil, atoll.E("open", "docker", atoll.ErrInvalid, err)
	}
	p := &Provider{opts: opts, log: opts.Log, engine: engine, names: names(opts.Prefix), imageRecords: imageRecords(filepath.Join(opts.Dir, "images")), connections: guestconn.New(), safeImages: map[string]bool{}, exitSlots: make(chan struct{}, maxExits), awaitedEnds: map[string]bool{}, sweeper: sweeper.New()}
	p.events = newEvents(p)
	p.sweeper.Start(p.sweepSandboxes)
	return p, nil
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info() }

// Info describes the provider that New makes with o.
func (o *Options) Info() atoll.Info {
	i := info
	i.Caps = o.caps(o.Plain)
	return i
}

// caps returns the caps of sandboxes, with an engine that can do everything.
func (o *Options) caps(plain bool) atoll.Caps {
	caps := info.Caps
	if plain {
		caps = plainCaps()
	}
	caps.NetworkOn = o.AllowNetworkOn
	caps.VolumeLocks = o.Runtime == "" || o.Runtime == "runc" || o.Runtime == "crun" // others may have kernels of their own
	return caps
}

// Close implements atoll.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.connections.Close()
	p.sweeper.Close()
	p.endWaits.Wait()
	p.events.close()
	return p.engine.Close()
}

// Get implements atoll.Provider.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	if _, err := p.findRecord(ctx, "get", n); err != nil {
		return nil, err
	}
	p.sweeper.Wake() // it may have a TTL
	return &sandbox{p, n}, nil
}

// Sandbox returns a handle without checking that the sandbox exists.
func (p *Provider) Sandbox(id string) atoll.Sandbox { return &sandbox{p, id} }

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := p.listRecords(ctx, "list", f)
	if err != nil {
		return nil, err
	}
	var list []atoll.Status
	for _, r := range all {
		list = append(list, r.Status)
	}
	return list, nil
}

// listRecords returns the records of the sandboxes that f selects, oldest first.
func (p *Provider) listRecords(ctx context.Context, op string, f atoll.Filter) ([]*record, error) {
	filters := p.names.selectOwn()
	if f.Project != "" {
		filters = filters.Add("label", labelProject+"="+f.Project)
	}
	found, err := p.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, p.wrapError(ctx, op, "", err)
	}
	var list []*record
	for _, c := range found.Items {
		r, err := p.findRecord(ctx, op, c.Labels[labelSession])
		if atoll.KindOf(err) == atoll.ErrNotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if f.Match(r.Status) {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b *record) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// wrapError returns err with its kind. If ctx has ended, it returns the error of ctx.
func (p *Provider) wrapError(ctx context.Context, op, id string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var own *atoll.Error
	if errors.As(err, &own) {
		return err
	}
	return atoll.E(op, id, kindOf(err), err)
}

func kindOf(err error) atoll.Kind {
	switch {
	case cerrdefs.IsNotFound(err), strings.Contains(err.Error(), "no such container"): // from Podman, for a container that is being removed
		return atoll.ErrNotFound
	case cerrdefs.IsInvalidArgument(err):
		return atoll.ErrInvalid
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
		return atoll.ErrConflict
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsUnauthorized(err):
		return atoll.ErrDenied
	case client.IsErrConnectionFailed(err), cerrdefs.IsUnavailable(err):
		return atoll.ErrUnavailable
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET): // the engine broke off its answer
		return atoll.ErrUnavailable
	case strings.Contains(err.Error(), context.DeadlineExceeded.Error()): // also as text in an answer of the engine
		return atoll.ErrTimeout
	case strings.Contains(err.Error(), context.Canceled.Error()):
		return atoll.ErrUnavailable
	}
	return atoll.ErrInternal
}

var _ atoll.Provider = (*Provider)(nil)
