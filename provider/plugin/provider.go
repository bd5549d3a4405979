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

// A Provider is the provider of a plugin.
type Provider struct {
	*client.Client
	program *Program
	place   string
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
	c, err := client.New(ctx, client.Options{Dial: program.Dial, Patience: retryPatience})
	if err != nil {
		return nil, errors.Join(err, program.Close())
	}
	if called := c.Info().Name; called != opts.Name {
		err := atoll.Errorf("open", opts.Name, atoll.ErrUnavailable, "its program serves a provider called %q: the names must be the same", called)
		return nil, errors.Join(err, c.Close(), program.Close())
	}
	return &Provider{c, program, r.place}, nil
}

// HTTPClient returns a client whose requests go to the program, whatever their host.
func (p *Program) HTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) },
		DisableCompression: true,
	}}
}

// Place implements Placer. It returns "" if Options.Place was not set, or if the sandboxes are
// on this machine.
func (p *Provider) Place(context.Context) (string, error) { return p.place, nil }

// Close ends the program. Sandboxes live on.
func (p *Provider) Close() error {
	err := p.Client.Close()
	if stopErr := p.program.Close(); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("close: %w", stopErr))
	}
	return err
}

var _ Placer = (*Provider)(nil)
