// Package mock is a provider for tests of programs that use a provider. Only the files of its
// sandboxes are real. Commands are Go functions: a small set of programs, to which Options.Programs
// adds, and a shell with simple commands only. Images are names without content. Everything else, such
// as states, streams, terminals and signals, behaves as the contract of package atoll says.
//
// A test can let each call fail or take time (Options.Before), or replace it (Options.Funcs).
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

// Address is the base URL in the Status of every running sandbox. Nothing listens there.
const Address = "http://mock:3002"

// Options configure a Provider. The zero value is usable.
type Options struct {
	// Dir holds volumes and records. If it is empty, New makes a temporary directory and
	// Close removes it.
	Dir string
	// Programs are commands by name. They add to the built-in programs, or replace them.
	Programs map[string]Program
	// Before, if not nil, is called before each call of a Provider or a Sandbox with the
	// call's verb ("create", "exec", ...) and its number, counted from 1 over all verbs. It may
	// block. If it returns an error, the call returns that error.
	Before func(ctx context.Context, op string, n int) error
	// Funcs replace calls.
	Funcs Funcs
	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	step func(name string) error // for tests: see inprocess.Options
}

// Funcs replace the calls of a Provider and of its Sandboxes, which get the sandbox's id. A nil
// function does not replace its call.
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
	opts          Options
	images        *imageStore
	calls         atomic.Int64
	removeTempDir func() error // does nothing if the caller chose Dir
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

// New returns a provider with the sandboxes that an earlier one recorded in opts.Dir, if any.
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
		Info: info, Image: defaultImage, Backend: newBackend(opts.Programs), Dir: opts.Dir, Address: Address, Log: opts.Log, Step: opts.step,
	})
	if err != nil {
		return nil, errors.Join(err, dispose())
	}
	images, err := openImages(opts.Dir)
	if err != nil {
		return nil, errors.Join(err, leaf.Close(), dispose())
	}
	return &Provider{ProviderLayer: atoll.ProviderLayer{Provider: leaf}, opts: opts, images: images, removeTempDir: dispose}, nil
}

// defaultImage is the image of sandboxes whose spec names none.
const defaultImage = "mock:latest"

// Calls returns the number of calls so far.
func (p *Provider) Calls() int { return int(p.calls.Load()) }

// beginCall counts a call and calls Options.Before.
func (p *Provider) beginCall(ctx context.Context, op string) error {
	n := int(p.calls.Add(1))
	if p.opts.Before == nil {
		return nil
	}
	return p.opts.Before(ctx, op, n)
}

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := p.beginCall(ctx, "create"); err != nil {
		return nil, err
	}
	if f := p.opts.Funcs.Create; f != nil {
		return f(ctx, spec)
	}
	if err := p.Prepare(ctx, spec, nil); err != nil {
		return nil, err
	}
	return p.wrapSandbox(p.Provider.Create(ctx, spec))
}

// Get implements atoll.Provider.
func (p *Provider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	if err := p.beginCall(ctx, "get"); err != nil {
		return nil, err
	}
	if f := p.opts.Funcs.Get; f != nil {
		return f(ctx, id)
	}
	return p.wrapSandbox(p.Provider.Get(ctx, id))
}

// List implements atoll.Provider.
func (p *Provider) List(ctx context.Context, filter atoll.Filter) ([]atoll.Status, error) {
	if err := p.beginCall(ctx, "list"); err != nil {
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
		if err := p.beginCall(ctx, "watch"); err != nil {
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
func (p *Provider) Close() error { return errors.Join(p.Provider.Close(), p.removeTempDir()) }

func (p *Provider) wrapSandbox(sb atoll.Sandbox, err error) (atoll.Sandbox, error) {
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
	if err := s.p.beginCall(ctx, "status"); err != nil {
		return atoll.Status{}, err
	}
	if f := s.p.opts.Funcs.Status; f != nil {
		return f(ctx, s.ID())
	}
	return s.Sandbox.Status(ctx)
}

func (s *sandbox) Start(ctx context.Context) error {
	if err := s.p.beginCall(ctx, "start"); err != nil {
		return err
	}
	if f := s.p.opts.Funcs.Start; f != nil {
		return f(ctx, s.ID())
	}
	return s.Sandbox.Start(ctx)
}

func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if err := s.p.beginCall(ctx, "stop"); err != nil {
		return err
	}
	if f := s.p.opts.Funcs.Stop; f != nil {
		return f(ctx, s.ID(), grace)
	}
	return s.Sandbox.Stop(ctx, grace)
}

func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := s.p.beginCall(ctx, "exec"); err != nil {
		return nil, err
	}
	if f := s.p.opts.Funcs.Exec; f != nil {
		return f(ctx, s.ID(), cmd)
	}
	return s.Sandbox.Exec(ctx, cmd)
}

func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	if err := s.p.beginCall(ctx, "process"); err != nil {
		return nil, err
	}
	if f := s.p.opts.Funcs.Process; f != nil {
		return f(ctx, s.ID(), id)
	}
	return s.Sandbox.Process(ctx, id)
}

func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.p.beginCall(ctx, "remove"); err != nil {
		return err
	}
	if f := s.p.opts.Funcs.Remove; f != nil {
		return f(ctx, s.ID(), atoll.ApplyRemoveOptions(opts...))
	}
	return s.Sandbox.Remove(ctx, opts...)
}
