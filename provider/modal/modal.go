// Package modal is a provider whose sandboxes are those of Modal (modal.com), reached by
// its official SDK. What is known of a sandbox is with Modal: its record is in a Dict of
// the environment, its work directory and the named volumes are Modal's Volumes. Any number
// of programs can share an environment, and one that dies loses nothing.
//
// A sandbox of Modal's never stops: it ends, and what was in its root file system with it.
// So Stop ends it, and Start makes another one from the same Spec with the same volumes.
//
// The guest comes into a sandbox on a Volume of its own, starts all that runs in it, and is
// spoken to over the stdin and stdout of one exec, which carry all requests.
package modal

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
	"github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// Options say whose account it is, and how it is used. Guest is required, and TokenID and
// TokenSecret for all but New itself.
type Options struct {
	// TokenID and TokenSecret are the account's, as "modal token new" makes them.
	TokenID, TokenSecret string
	// Environment is the one of the workspace's; empty means its default one.
	Environment string
	// ServerURL is where Modal is; empty means DefaultServerURL. With http:// the
	// token is sent as it is.
	ServerURL string
	// App is what sandboxes belong to, and is made when it is missing; empty means
	// Prefix. With AppPerProject it is what the names of the projects' apps begin with.
	App           string
	AppPerProject bool
	// Prefix begins the names of what is made; empty means "atoll". Servers that share an
	// environment and not their sandboxes have different ones.
	Prefix string

	// Guest opens the guest's program, which is cmd/atoll-guest built for linux/amd64.
	Guest func() ([]byte, error)

	// Image is that of sandboxes that name none; empty means DefaultImage.
	Image string
	// Commands are lines of a Dockerfile that every image is built with, like
	// "RUN pip install numpy"; Modal keeps what it has built.
	Commands []string
	// RegistrySecret is the name of a Secret with REGISTRY_USERNAME and REGISTRY_PASSWORD,
	// for images that are not public.
	RegistrySecret string
	// Secrets are the names of Secrets whose variables every sandbox has.
	Secrets []string
	// Buckets are mounted in every sandbox.
	Buckets []Bucket

	// GPU is the type of which Spec.Resources.GPUs counts, like "A100"; empty means
	// "any".
	GPU string
	// Cloud and Regions say where sandboxes run; empty means anywhere.
	Cloud   string
	Regions []string
	// Ephemeral makes sandboxes without volumes: what they have ends with them.
	Ephemeral bool
	// Tunnels says what a published port becomes; empty means TunnelsOff.
	Tunnels Tunnels
	// Patience is how long an image may take to be built, and a sandbox to be placed; 0
	// means DefaultPatience.
	Patience time.Duration

	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	pollInterval   time.Duration           // between two looks of a Watch; 0 means pollEvery
	step           func(name string) error // for tests: asked before each step of a creation
	http           *http.Client            // what blobs are sent with; nil means the default one
	maxLifetime    time.Duration           // the longest life; 0 means longest
	leaseTTL       time.Duration           // how long a creation is thought to go on, unless it says that it does; 0 means making
	silenceTimeout time.Duration           // of this program, after which its programs in sandboxes end; 0 means silence
}

// A Bucket is one of S3, R2 or Google Cloud Storage that is mounted.
type Bucket = settings.Bucket

// Tunnels says what a published port becomes.
type Tunnels string

// What a published port can become. A tunnel is a public address: whoever knows it can
// connect.
const (
	TunnelsOff Tunnels = "off" // it is refused
	TunnelsTLS Tunnels = "tls" // a tunnel that wants TLS
	TunnelsTCP Tunnels = "tcp" // a tunnel that passes on what comes
)

// What holds unless Options say otherwise.
const (
	DefaultServerURL = "https://api.modal.com:443"
	DefaultImage     = settings.DefaultImage
	DefaultPatience  = settings.DefaultPatience
)

// A Provider is an atoll.Provider.
type Provider struct {
	opts       Options
	names      names
	service    *service
	store      *store              // what is known of sandboxes, names, volumes and snapshots
	outputs    *store              // what main processes have printed
	images     cached[*builtImage] // by reference
	apps       cached[*sdk.App]    // by name
	guests     cached[*sdk.Volume] // by digest
	visits     *guestconn.Visits
	events     *events
	sweeper    *sweeper.Sweeper
	unreadLogs unreadLogs     // whose log could not be read
	locks      keymutex.Locks // keep what this program does to a sandbox apart; the book keeps others apart

	work           sync.WaitGroup // what goes on without its caller
	closingStreams sync.WaitGroup // programs at Modal's that are being told that they are to end

	mu     sync.Mutex
	closed bool
	used   bool // somebody has asked for something, and may
}

var validPrefix = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$`)

// New returns a provider of an account's sandboxes. It does not connect. Kinds: ErrInvalid.
func New(opts Options) (*Provider, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("open", "modal", atoll.ErrInvalid, format, args...)
	}
	opts.setDefaults()
	switch {
	case opts.Guest == nil:
		return nil, bad("no guest given")
	case !validPrefix.MatchString(opts.Prefix):
		return nil, bad("prefix %q: use up to 20 lower-case letters, digits and '-', beginning with a letter", opts.Prefix)
	case !validName.MatchString(opts.App):
		return nil, bad("app %q: use up to 63 letters, digits, '.', '_' and '-'", opts.App)
	case !slices.Contains([]Tunnels{TunnelsOff, TunnelsTLS, TunnelsTCP}, opts.Tunnels):
		return nil, bad("tunnels %q: use %s, %s or %s", opts.Tunnels, TunnelsOff, TunnelsTLS, TunnelsTCP)
	}
	for i, b := range opts.Buckets {
		if err := b.Check(); err != nil {
			return nil, atoll.E("open", "modal", atoll.ErrInvalid, err)
		}
		if slices.ContainsFunc(opts.Buckets[:i], func(other Bucket) bool { return other.Path == b.Path }) {
			return nil, bad("bucket %s: another one is mounted on %s", b.Name, b.Path)
		}
	}
	service, err := newService(&opts)
	if err != nil {
		return nil, atoll.E("open", "modal", atoll.ErrInvalid, err)
	}
	p := &Provider{opts: opts, names: names(opts.Prefix), service: service, visits: guestconn.New(), sweeper: sweeper.New()}
	p.store, p.outputs = newStore(service, p.names.dictName()), newStore(service, p.names.outputDictName())
	p.events = newEvents(p)
	p.sweeper.Start(p.sweepSandboxes)
	return p, nil
}

// setDefaults replaces what is not set by what holds then.
func (o *Options) setDefaults() {
	for _, s := range []struct {
		field *string
		value string
	}{{&o.Prefix, "atoll"}, {&o.ServerURL, DefaultServerURL}, {&o.Image, DefaultImage}, {&o.GPU, "any"}} {
		if *s.field == "" {
			*s.field = s.value
		}
	}
	if o.App == "" {
		o.App = o.Prefix
	}
	if o.Tunnels == "" {
		o.Tunnels = TunnelsOff
	}
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.pollInterval == 0 {
		o.pollInterval = pollInterval
	}
	if o.leaseTTL == 0 {
		o.leaseTTL = leaseTTL
	}
	if o.silenceTimeout == 0 {
		o.silenceTimeout = silenceTimeout
	}
	if o.http == nil {
		o.http = http.DefaultClient
	}
	if o.maxLifetime == 0 {
		o.maxLifetime = maxLifetime
	}
}

// silenceTimeout is how long nothing may be heard of a program that has had Modal execute one in
// a sandbox, before that one ends: it does not end with whoever it was executed for, who
// may be gone for good. Who was only away connects anew.
const silenceTimeout = 2 * time.Minute

// maxLifetime is how long Modal has a sandbox live at most.
const maxLifetime = 24 * time.Hour

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info() }

// Info describes a provider that is made with o.
func (o *Options) Info() atoll.Info {
	return atoll.Info{Name: "modal", Isolation: atoll.IsolationKernel, Version: sdkVersion, Caps: o.caps()}
}

func (o *Options) caps() atoll.Caps {
	return atoll.Caps{
		Durable:     atoll.DurableNone,
		Restart:     true,
		Survives:    true,
		Reattach:    true,
		ExitSignal:  true,
		IdleStop:    true,
		Extend:      true,
		TTY:         true,
		Files:       true,
		Dial:        true,
		Snapshot:    true,
		Images:      true,
		Users:       true,
		Volumes:     !o.Ephemeral,
		MemoryLimit: true,
		CPULimit:    true,
		NetworkNone: true,
		NetworkOn:   true,
		Egress:      true, // to networks, not to names
		Publish:     o.Tunnels != TunnelsOff && o.Tunnels != "",
		GPU:         true,
	}
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
	p.sweeper.Close()
	p.events.close()
	p.work.Wait()
	p.visits.Close()
	p.awaitStreams()
	p.service.close()
	return nil
}

// closeTimeout is how long a provider that is closed may take to end its programs at Modal's,
// which end of their own otherwise when they have heard nothing of it for a while.
const closeTimeout = 5 * time.Second

func (p *Provider) awaitStreams() {
	done := make(chan struct{})
	go func() {
		p.closingStreams.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
	}
}

// open begins to use the account, for the first who wants to. Kinds: ErrDenied,
// ErrUnavailable, ErrInvalid.
func (p *Provider) open(ctx context.Context, op string) error {
	if err := p.service.open(ctx); err != nil {
		return p.wrapError(ctx, op, "", err)
	}
	p.mu.Lock()
	first := !p.used && !p.closed
	p.used = true
	p.mu.Unlock()
	if first {
		p.sweeper.Rouse()
	}
	return nil
}

// isUsed reports whether somebody has asked for something, and may.
func (p *Provider) isUsed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used && !p.closed
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
	return p.newHandle(n), nil
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	all, err := p.allRecords(ctx, "list")
	if err != nil {
		return nil, err
	}
	var list []atoll.Status
	for _, r := range all {
		if f.Match(r.Status) {
			list = append(list, r.Status)
		}
	}
	slices.SortStableFunc(list, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return list, nil
}

var _ atoll.Provider = (*Provider)(nil)
