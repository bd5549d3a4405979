// Package docker is a provider whose sandboxes are containers of a Docker
// Engine, local or remote. A small static program of Atoll's, the guest, is the
// first process of each container: it starts all others, keeps what they print,
// and is spoken to over one stream that the engine opens, so that a command costs
// no round through the engine.
//
// All that is known of a sandbox is with the engine, in its container's labels:
// any number of programs can share one, and one that dies loses nothing.
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
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// Options say which engine, and how. Dir is required, and Guest unless Plain.
type Options struct {
	// Dir holds the locks by which the programs of one machine keep out of each
	// other's way. It is made if missing.
	Dir string
	// Guest opens the guest's program, which is cmd/atoll-guest built for the
	// engine's machine.
	Guest func() ([]byte, error)
	// Plain makes sandboxes without a guest: by the plain Engine API, and with the
	// image's own shell. They can do less, as Info tells, and commands take longer to
	// start. Sandboxes of both kinds can be in one engine, and any provider serves
	// each as it was made.
	Plain bool
	// Host is the engine's address, as DOCKER_HOST; empty means what the
	// environment says, else the current one of docker's contexts.
	Host string
	// Dial reaches the engine in place of Host, over whatever it is. Its connections
	// have a CloseWrite, as those of TCP, of TLS and of Unix sockets do.
	Dial func(ctx context.Context) (net.Conn, error)
	// Fetch gives an image that the engine lacks, whose name in full is ref, as docker
	// save writes it, called as, in place of the engine's own pull. Kinds: those of Create;
	// ErrUnsupported has the engine pull it, without credentials.
	Fetch func(ctx context.Context, ref, as string, progress func(atoll.Progress)) (io.ReadCloser, error)
	// Online has sandboxes with a network of mode on: the engine's machine is one that
	// keeps them from what they are not to reach. Each is alone on it.
	Online bool
	// Slow is how many times as long as on hardware things take on the engine's machine;
	// nil means 1.
	Slow func(ctx context.Context) int
	// Prefix begins the names of what is made; empty means "atoll". Servers that
	// share an engine and not their sandboxes have different ones.
	Prefix string
	// Image is that of sandboxes that name none; empty means DefaultImage.
	Image string
	// Runtime is the engine's runtime to use, such as "runsc" or "kata"; empty
	// means the engine's default.
	Runtime string
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	step func(name string) error // for tests: asked before each step of a creation
}

// DefaultImage is the image of sandboxes that name none.
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
	endWaits     sync.WaitGroup    // for the ends of sandboxes that go then
	exitSlots    chan struct{}     // full while as many containers are being ended as may be
	visits       *guestconn.Visits // to the insides of sandboxes

	mu         sync.Mutex
	closed     bool
	guestReady bool            // the guest's volume was seen to hold it
	cachedInfo *engineInfo     // of the engine; nil until it was asked
	safeImages map[string]bool // images, by id, in which no link is in the guest's way

	awaitedEnds        map[string]bool // sandboxes whose end waits waits for
	lastInstallerSweep time.Time       // for what was left of installations
}

// info is what holds for every engine.
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

// New returns a provider of the engine's sandboxes. It does not connect. Kinds:
// ErrInvalid.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" || opts.Guest == nil && !opts.Plain {
		return nil, atoll.Errorf("open", "docker", atoll.ErrInvalid, "no directory or no guest given")
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
	p := &Provider{opts: opts, log: opts.Log, engine: engine, names: names(opts.Prefix), imageRecords: imageRecords(filepath.Join(opts.Dir, "images")), visits: guestconn.New(), safeImages: map[string]bool{}, exitSlots: make(chan struct{}, maxExits), awaitedEnds: map[string]bool{}, sweeper: sweeper.New()}
	p.events = newEvents(p)
	p.sweeper.Start(p.sweepSandboxes)
	return p, nil
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info() }

// Info describes a provider that is made with o.
func (o *Options) Info() atoll.Info {
	i := info
	i.Caps = o.caps(o.Plain)
	return i
}

// caps are those of sandboxes, on an engine that can do all that there is.
func (o *Options) caps(plain bool) atoll.Caps {
	caps := info.Caps
	if plain {
		caps = plainCaps()
	}
	caps.NetworkOn = o.Online
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
	p.visits.Close()
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
	p.sweeper.Rouse() // it may be one with a limited time
	return &sandbox{p, n}, nil
}

// Sandbox is a handle of a sandbox, of which nobody is asked whether it is there.
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

// listRecords is what the engine knows of the sandboxes that f selects, oldest first.
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

// wrapError gives an error of the engine its kind.
func (p *Provider) wrapError(ctx context.Context, op, id string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var known *atoll.Error
	if errors.As(err, &known) {
		return err
	}
	return atoll.E(op, id, kindOf(err), err)
}

func kindOf(err error) atoll.Kind {
	switch {
	case cerrdefs.IsNotFound(err), strings.Contains(err.Error(), "no such container"): // podman, of one that goes meanwhile
		return atoll.ErrNotFound
	case cerrdefs.IsInvalidArgument(err):
		return atoll.ErrInvalid
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
		return atoll.ErrConflict
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsUnauthorized(err):
		return atoll.ErrDenied
	case client.IsErrConnectionFailed(err), cerrdefs.IsUnavailable(err):
		return atoll.ErrUnavailable
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET): // it ended within its answer
		return atoll.ErrUnavailable
	}
	return atoll.ErrInternal
}

var _ atoll.Provider = (*Provider)(nil)
