// Package modal is a provider whose sandboxes run at Modal (modal.com), which it reaches
// through Modal's official SDK. Modal stores all state: the record of a sandbox is in a Dict of
// the environment, its work directory and the named volumes are Volumes. Any number of programs
// can share an environment, and a program that dies loses nothing.
//
// A sandbox of Modal never stops: it ends, and its root file system is lost. So Stop ends it,
// and Start creates another one from the same Spec with the same volumes. This package calls a
// sandbox of Modal an instance.
//
// The guest comes into an instance on a Volume of its own, and starts every process of the
// sandbox. The provider talks to it over the stdin and stdout of one exec, which carry all
// requests.
package modal

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// Options select the account and configure its sandboxes. Guest is required; all calls but New
// also need TokenID and TokenSecret.
type Options struct {
	// TokenID and TokenSecret are the account's token; "modal token new" makes one.
	TokenID, TokenSecret string
	// Environment is an environment of the workspace; empty means its default one.
	Environment string
	// ServerURL is the URL of Modal; empty means DefaultServerURL. With http:// the token is
	// sent unencrypted.
	ServerURL string
	// App is the app of sandboxes, created if it does not exist; empty means Prefix. With
	// AppPerProject, each project has an app whose name begins with it.
	App           string
	AppPerProject bool
	// Prefix begins the names of all objects; empty means "atoll". Servers that share an
	// environment but not their sandboxes need different prefixes.
	Prefix string

	// Guest returns the guest's program, cmd/atoll-guest built for linux/amd64.
	Guest func() ([]byte, error)

	// Image is the default image of sandboxes; empty means DefaultImage.
	Image string
	// Commands are lines of a Dockerfile that Modal adds to every image, such as "RUN pip
	// install numpy"; Modal caches the results.
	Commands []string
	// RegistrySecret is the name of a Secret with REGISTRY_USERNAME and REGISTRY_PASSWORD, for
	// private images.
	RegistrySecret string
	// Secrets are the names of Secrets whose variables every sandbox has.
	Secrets []string
	// Buckets are mounted in every sandbox.
	Buckets []Bucket

	// GPU is the type of GPU that Spec.Resources.GPUs counts, such as "A100"; empty means
	// "any".
	GPU string
	// Cloud and Regions restrict where sandboxes run; empty means anywhere.
	Cloud   string
	Regions []string
	// Ephemeral makes sandboxes without volumes: their files are lost with them.
	Ephemeral bool
	// Tunnels selects what a published port becomes; empty means TunnelsOff.
	Tunnels Tunnels
	// Patience bounds the time to build an image, and the time to place a sandbox; 0 means
	// DefaultPatience.
	Patience time.Duration

	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	pollInterval   time.Duration           // between two polls of a Watch; 0 means the constant pollInterval
	step           func(name string) error // for tests: called before each step of a creation
	http           *http.Client            // uploads blobs; nil means the default client
	maxLifetime    time.Duration           // the longest run of a sandbox; 0 means the constant maxLifetime
	endTimeout     time.Duration           // for Modal to report the end of an instance; 0 means the constant endTimeout
	leaseTTL       time.Duration           // lease of a creation or a start; 0 means the constant leaseTTL
	silenceTimeout time.Duration           // without a word of this program, its programs in sandboxes end; 0 means the constant silenceTimeout
}

// A Bucket is a mounted bucket of S3, R2 or Google Cloud Storage.
type Bucket = settings.Bucket

// Tunnels selects what a published port becomes.
type Tunnels string

// The values of Tunnels. A tunnel is a public address: anyone who knows it can connect.
const (
	TunnelsOff Tunnels = "off" // published ports are refused
	TunnelsTLS Tunnels = "tls" // a tunnel with TLS
	TunnelsTCP Tunnels = "tcp" // a tunnel of plain TCP
)

// The defaults of Options.
const (
	DefaultServerURL = "https://api.modal.com:443"
	DefaultImage     = settings.DefaultImage
	DefaultPatience  = settings.DefaultPatience
)

// leaseTTL is the time after which a creation or a start counts as abandoned, unless its program
// renews the lease.
const leaseTTL = 30 * time.Second

// A Provider is an atoll.Provider.
type Provider struct {
	remote.Provider[*revision]

	engine     *remote.Engine[*revision]
	opts       Options
	names      names
	service    *service
	store      *store             // sandboxes, names, volumes and snapshots
	outputs    *store             // the output of main processes
	images     cache[*builtImage] // by reference
	apps       cache[*sdk.App]    // by name
	guests     cache[*sdk.Volume] // by digest
	events     *events
	unreadLogs unreadLogs // instances whose log could not be read

	closingStreams sync.WaitGroup // streams to programs at Modal that are being closed

	used atomic.Bool // a call has opened the account successfully
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
		return nil, bad("prefix %q: use up to 20 lower-case letters, digits and '-', starting with a letter", opts.Prefix)
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
	p := &Provider{opts: opts, names: names(opts.Prefix), service: service}
	p.store, p.outputs = newStore(service, p.names.dictName()), newStore(service, p.names.outputDictName())
	p.events = newEvents(p)
	p.engine = remote.New(backend{p}, func(s *remote.Sandbox[*revision]) atoll.Sandbox { return &sandbox{s, p} }, remote.Config{
		Name: "modal", Ephemeral: opts.Ephemeral, Patience: opts.Patience, ReachTimeout: reachTimeout,
		AnswerTimeout: opts.endTimeout, LeaseTTL: opts.leaseTTL, Log: opts.Log, Step: opts.step,
	})
	p.Provider = p.engine.Provider()
	p.engine.StartSweeps()
	return p, nil
}

// setDefaults sets the fields that are not set.
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
	if o.endTimeout == 0 {
		o.endTimeout = endTimeout
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

// silenceTimeout is the time without a word of this program after which the programs end that
// it has executed in sandboxes. They would not end otherwise if this program is gone for good.
// If it was only away, it connects again.
const silenceTimeout = 2 * time.Minute

// maxLifetime is the longest time for which Modal runs a sandbox.
const maxLifetime = 24 * time.Hour

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info() }

// Info describes a provider with these options.
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
		Egress:      true, // of networks, not of names
		Publish:     o.Tunnels != TunnelsOff && o.Tunnels != "",
		GPU:         true,
	}
}

// Close implements atoll.Provider.
func (p *Provider) Close() error {
	if p.engine.Shut(p.events.close) {
		p.awaitStreams()
		p.service.close()
	}
	return nil
}

// closeTimeout bounds how long Close waits for the end of the provider's programs at Modal.
// They end by themselves otherwise, after a while without a word of this program.
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

// open opens the account on the first call. Kinds: ErrDenied, ErrUnavailable, ErrInvalid.
func (p *Provider) open(ctx context.Context, op string) error {
	if err := p.service.open(ctx); err != nil {
		return p.wrapError(ctx, op, "", err)
	}
	if !p.used.Swap(true) {
		p.engine.Sweeper.Wake()
	}
	return nil
}

var _ atoll.Provider = (*Provider)(nil)
