package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// retryPatience bounds the retries of a call after a program has died.
const retryPatience = 20 * time.Second

// A Provider is the provider of a plugin: a client of its program, or the provider of NewProvider if the
// program is a backend.
type Provider struct {
	atoll.ProviderLayer
	program *Program
	place   string
	backend *httpBackend // nil if the program serves the whole API
}

// Open starts a plugin's program and returns its provider, which Close ends. When the program
// dies it is started again: calls are repeated and streams go on where that is possible, as
// client.Options.Patience says. Kinds: ErrUnavailable (there is no such program, or it does
// not speak the protocol), and those of the program.
func Open(ctx context.Context, opts Options) (*Provider, error) {
	program := NewProgram(opts)
	r, err := program.ensureRunning(ctx)
	if err != nil {
		return nil, err
	}
	p := &Provider{program: program, place: r.place}
	if r.backend {
		p.ProviderLayer.Provider, p.backend, err = openBackend(ctx, program, opts.Log)
	} else {
		p.ProviderLayer.Provider, err = client.New(ctx, client.Options{Dial: program.Dial, Patience: retryPatience})
	}
	if err != nil {
		return nil, errors.Join(err, program.Close())
	}
	if called := p.Info().Name; called != opts.Name {
		err := atoll.Errorf("open", opts.Name, atoll.ErrUnavailable, "its program serves a provider called %q: the names must be the same", called)
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// HTTPClient returns a client whose requests go to the program, whatever their host.
func (p *Program) HTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) },
		DisableCompression: true,
	}}
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	return p.wrapSandbox(p.ProviderLayer.Create(ctx, spec))
}

// Get implements atoll.Provider.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	return p.wrapSandbox(p.ProviderLayer.Get(ctx, id))
}

// wrapSandbox makes the file system of s refuse every call if the provider has no cap files. The program
// would refuse them, too, but a writer may fail before it has the answer.
func (p *Provider) wrapSandbox(s atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil || p.Info().Caps.Files {
		return s, err
	}
	return filelessSandbox{atoll.SandboxLayer{Sandbox: s}}, nil
}

// A filelessSandbox has no file system.
type filelessSandbox struct{ atoll.SandboxLayer }

// Files implements atoll.Filer.
func (s filelessSandbox) Files() atoll.FS { return atoll.Files(struct{ atoll.Sandbox }{s.Sandbox}) }

// Place implements Placer. It returns "" if Options.Place was not set, or if the sandboxes are
// on this machine.
func (p *Provider) Place(context.Context) (string, error) { return p.place, nil }

// Close ends the program. Sandboxes live on, if they can without the program.
func (p *Provider) Close() error {
	err := p.ProviderLayer.Close()
	if p.backend != nil {
		p.backend.closeConnections()
	}
	if stopErr := p.program.Close(); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("close: %w", stopErr))
	}
	return err
}

var _ Placer = (*Provider)(nil)
