// Package mock is a provider of sandboxes in which nothing is real but the
// files, for tests of what uses a provider. Commands are Go functions: a small
// set of programs, to which Options.Programs adds, and a shell that knows no
// more than echo and exit. Images are names. Everything else, from states and streams to
// terminals and signals, behaves as the contract of package atoll says.
//
// Any call can be made to fail or to take its time (Options.Before) or be
// replaced (Options.Funcs).
package mock

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

// Address is the base URL that every running sandbox has in its Status. Nobody
// answers there.
const Address = "http://mock:3002"

// Options change what a Provider does; the zero value is good.
type Options struct {
	// Dir keeps volumes and records. Empty means a temporary directory that
	// Close removes.
	Dir string
	// Programs are commands by name, in addition to those that are there, or in
	// their place.
	Programs map[string]Program
	// Before is called before each call of a Provider or a Sandbox with the
	// call's verb ("create", "exec", ...) and its number, counted from 1 over
	// all verbs. It may take its time; an error that it returns is the call's.
	Before func(ctx context.Context, op string, n int) error
	// Funcs replace calls.
	Funcs Funcs
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	step func(name string) error // for tests: see inprocess.Options
}

// Funcs replace the calls of a Provider and its Sandboxes, which are named by
// id. A nil one leaves its call as it is.
type Funcs struct {
	Create func(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error)
	Get    func(ctx context.Context, id string) (atoll.Sandbox, error)
	List   func(ctx context.Context, f atoll.Filter) ([]atoll.Status, error)
	Watch  func(ctx context.Context) iter.Seq2[atoll.Event, error]

	Status  func(ctx context.Context, id string) (atoll.Status, error)
	Start   func(ctx context.Context, id string) error
	Stop    func(ctx context.Context, id string, grace time.Duration) error
	Exec    func(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error)
	Process func(ctx context.Context, id, process string) (atoll.Process, error)
	Remove  func(ctx context.Context, id string, opts atoll.RemoveOptions) error
}

// A Provider is an atoll.Provider.
type Provider struct {
	atoll.ProviderLayer
	opts    Options
	images  *images
	calls   atomic.Int64
	dispose func() error
}

var info = atoll.Info{
	Name:      "mock",
	Isolation: atoll.IsolationNone,
	Caps: atoll.Caps{
		Restart:    true,
		Durable:    atoll.DurableStop,
		ExitSignal: true,
		Extend:     true,
		TTY:        true,
		Files:      true,
		Dial:       true,
		Images:     true,
		ImageStore: true,
		Users:      true,
		Volumes:    true,
	},
}

// New returns a provider without sandboxes, or with those of an earlier one in
// opts.Dir.
func New(opts Options) (*Provider, error) {
	dispose := func() error { return nil }
	if opts.Dir == "" {
		dir, err := os.MkdirTemp("", "atoll-mock-")
		if err != nil {
			return nil, atoll.E("open", "mock", atoll.KindOf(err), err)
		}
		opts.Dir, dispose = dir, func() error { return os.RemoveAll(dir) }
	}
	leaf, err := inprocess.New(inprocess.Options{
		Info: info, Image: defaultImage, Backend: newWorld(opts.Programs), Dir: opts.Dir, Address: Address, Log: opts.Log, Step: opts.step,
	})
	if err != nil {
		return nil, errors.Join(err, dispose())
	}
	images, err := openImages(opts.Dir)
	if err != nil {
		return nil, errors.Join(err, leaf.Close(), dispose())
	}
	return &Provider{ProviderLayer: atoll.ProviderLayer{Provider: leaf}, opts: opts, images: images, dispose: dispose}, nil
}

// defaultImage is what sandboxes are made of that name no image.
const defaultImage = "mock:latest"

// Calls is how many calls there were.
func (p *Provider) Calls() int { return int(p.calls.Load()) }

// before counts a call.
func (p *Provider) before(ctx context.Context, op string) error {
	n := int(p.calls.Add(1))
	if p.opts.Before == nil {
		return nil
	}
	return p.opts.Before(ctx, op, n)
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := p.before(ctx, "create"); err != nil {
		return nil, err
	}
	if f := p.opts.Funcs.Create; f != nil {
		return f(ctx, spec)
	}
	if err := p.Prepare(ctx, spec, nil); err != nil {
		return nil, err
	}
	return p.wrap(p.Provider.Create(ctx, spec))
}

// Get implements atoll.Provider.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := p.before(ctx, "get"); err != nil {
		return nil, err
	}
	if f := p.opts.Funcs.Get; f != nil {
		return f(ctx, id)
	}
	return p.wrap(p.Provider.Get(ctx, id))
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, filter atoll.Filter) ([]atoll.Status, error) {
	if err := p.before(ctx, "list"); err != nil {
		return nil, err
	}
	if f := p.opts.Funcs.List; f != nil {
		return f(ctx, filter)
	}
	return p.Provider.List(ctx, filter)
}

// Watch implements atoll.Provider.
func (p *Provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) {
		if err := p.before(ctx, "watch"); err != nil {
			yield(atoll.Event{}, err)
			return
		}
		watch := p.Provider.Watch
		if p.opts.Funcs.Watch != nil {
			watch = p.opts.Funcs.Watch
		}
		watch(ctx)(yield)
	}
}

// Close implements atoll.Provider.
func (p *Provider) Close() error { return errors.Join(p.Provider.Close(), p.dispose()) }

func (p *Provider) wrap(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return &sandbox{atoll.SandboxLayer{Sandbox: sb}, p}, nil
}

type sandbox struct {
	atoll.SandboxLayer
	p *Provider
}

func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	if err := s.p.before(ctx, "status"); err != nil {
		return atoll.Status{}, err
	}
	if f := s.p.opts.Funcs.Status; f != nil {
		return f(ctx, s.ID())
	}
	return s.Sandbox.Status(ctx)
}

func (s *sandbox) Start(ctx context.Context) error {
	if err := s.p.before(ctx, "start"); err != nil {
		return err
	}
	if f := s.p.opts.Funcs.Start; f != nil {
		return f(ctx, s.ID())
	}
	return s.Sandbox.Start(ctx)
}

func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if err := s.p.before(ctx, "stop"); err != nil {
		return err
	}
	if f := s.p.opts.Funcs.Stop; f != nil {
		return f(ctx, s.ID(), grace)
	}
	return s.Sandbox.Stop(ctx, grace)
}

func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := s.p.before(ctx, "exec"); err != nil {
		return nil, err
	}
	if f := s.p.opts.Funcs.Exec; f != nil {
		return f(ctx, s.ID(), cmd)
	}
	return s.Sandbox.Exec(ctx, cmd)
}

func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	if err := s.p.before(ctx, "process"); err != nil {
		return nil, err
	}
	if f := s.p.opts.Funcs.Process; f != nil {
		return f(ctx, s.ID(), id)
	}
	return s.Sandbox.Process(ctx, id)
}

func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.p.before(ctx, "remove"); err != nil {
		return err
	}
	if f := s.p.opts.Funcs.Remove; f != nil {
		return f(ctx, s.ID(), atoll.RemoveOpts(opts...))
	}
	return s.Sandbox.Remove(ctx, opts...)
}
