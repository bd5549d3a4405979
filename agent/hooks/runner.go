package hooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Options are what a Runner gets. The zero value is ready.
type Options struct {
	// Timeout is how long a hook may take; 0 means DefaultTimeout. Then its context ends.
	Timeout time.Duration
	// Grace is how long a hook is waited for once its context has ended; 0 means
	// DefaultGrace. One that still runs is left behind: its goroutine cannot be ended.
	Grace time.Duration
	// MaxLeft is how many hooks may be left behind and still run; 0 means DefaultMaxLeft.
	// While there are so many no other hook is run.
	MaxLeft int
	// Log is told when each hook begins and ends, how long it took and what its error
	// was; nil discards.
	Log *slog.Logger
	// Observe is told of each hook, once it has returned, was left behind or was not run,
	// for metrics; nil is told nothing. It may be called at once by many goroutines.
	Observe func(hook string, took time.Duration, err error)
}

// The bounds of hooks unless Options say otherwise.
const (
	DefaultTimeout = 10 * time.Minute
	DefaultGrace   = 5 * time.Second
	DefaultMaxLeft = 16
)

// A Runner runs hooks. Its methods may be called at once by many goroutines.
type Runner struct {
	opts Options
	log  *slog.Logger

	mu   sync.Mutex
	left map[chan struct{}]string // hooks that were left behind, and what to call each; closed when it has ended
}

// New returns a Runner. It holds nothing but the hooks that it has left behind, for
// which Wait waits.
func New(opts Options) *Runner {
	opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	opts.Grace = cmp.Or(opts.Grace, DefaultGrace)
	opts.MaxLeft = cmp.Or(opts.MaxLeft, DefaultMaxLeft)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Observe == nil {
		opts.Observe = func(string, time.Duration, error) {}
	}
	return &Runner{opts: opts, log: opts.Log, left: map[chan struct{}]string{}}
}

// ColdStart runs OnColdStart. Its error must fail the creation of the sandbox: the
// caller takes away all that was made, and returns it.
func (r *Runner) ColdStart(ctx context.Context, hooks Hooks, data *HookData) error {
	return r.ExecuteHook(ctx, OnColdStart, hooks.OnColdStart, data)
}

// Message runs OnMessage, also when ctx has ended: what was said was said. Its error is
// logged.
func (r *Runner) Message(ctx context.Context, hooks Hooks, data *HookData) {
	_ = r.ExecuteHook(context.WithoutCancel(ctx), OnMessage, hooks.OnMessage, data)
}

// StreamFinish runs OnStreamFinish, also when ctx has ended: it is for turns that have
// failed, and those whose client has gone, as for any other. Its error is logged.
func (r *Runner) StreamFinish(ctx context.Context, hooks Hooks, data *HookData) {
	_ = r.ExecuteHook(context.WithoutCancel(ctx), OnStreamFinish, hooks.OnStreamFinish, data)
}

// Terminate runs OnTerminate, also when ctx has ended. Whatever it returns, the caller
// ends the sandbox, and then returns it beside its own error.
func (r *Runner) Terminate(ctx context.Context, hooks Hooks, data *HookData) error {
	return r.ExecuteHook(context.WithoutCancel(ctx), OnTerminate, hooks.OnTerminate, data)
}

// ExecuteHook runs a hook, on a copy of data, and logs that it did; nil does nothing.
// It returns within the Timeout and the Grace of the Options, and no more than the Grace
// after ctx has ended.
//
// Kinds: those of the hook; ErrTimeout (it took longer than it may); ErrInternal (it
// panicked, the stack being logged); ErrExhausted (it was not run, because too many
// others have been left behind).
func (r *Runner) ExecuteHook(ctx context.Context, name string, hook HookFunc, data *HookData) error {
	if hook == nil {
		return nil
	}
	log := r.log.With("hook", name, "conversation", data.ConversationID, "sandbox", data.sandboxID())
	log.Debug("hook begins")
	begin := time.Now()
	err := r.run(ctx, name, hook, data, log)
	took := time.Since(begin)
	if err == nil {
		log.Info("hook", "dur", took)
	} else {
		err = atoll.E(name, data.ConversationID, atoll.KindOf(err), err)
		log.Warn("hook", "dur", took, "kind", string(atoll.KindOf(err)), "err", err)
	}
	r.opts.Observe(name, took, err)
	return err
}

// errGoexit is the error of a hook that neither returned nor panicked.
var errGoexit = errors.New("the hook ended its goroutine instead of returning")

func (r *Runner) run(ctx context.Context, name string, hook HookFunc, data *HookData, log *slog.Logger) error {
	if err := r.room(); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	own := data.clone()
	own.Hook = name
	if own.Log == nil {
		own.Log = log
	}
	info := own.SandboxInfo
	result, ended := make(chan error, 1), make(chan struct{})
	go func() {
		err := error(errGoexit)
		defer func() {
			result <- err
			close(ended)
			r.forget(ended, log)
		}()
		err = guard(within, hook, own)
	}()
	err, ok := r.await(within, result)
	if !ok && !r.leave(ended, name+" of "+data.ConversationID) {
		err, ok = <-result, true // it ended just now
	}
	if ok && info != nil {
		*data.SandboxInfo = *info
	}
	switch {
	case !ok:
		return atoll.Errorf("", "", atoll.ErrTimeout, "it still ran %s after it was told to end, and is left behind: a hook has to return when its context ends", r.opts.Grace)
	case err != nil && ctx.Err() == nil && within.Err() != nil:
		return atoll.Errorf("", "", atoll.ErrTimeout, "took longer than %s: %w", r.opts.Timeout, err)
	}
	return err
}

// await returns what a hook has returned, and false if it does not return.
func (r *Runner) await(ctx context.Context, result <-chan error) (error, bool) {
	select {
	case err := <-result:
		return err, true
	case <-ctx.Done():
	}
	grace := time.NewTimer(r.opts.Grace)
	defer grace.Stop()
	select {
	case err := <-result:
		return err, true
	case <-grace.C:
		return nil, false
	}
}

// guard calls a hook, and makes a panic an error.
func guard(ctx context.Context, hook HookFunc, data *HookData) (err error) {
	defer func() {
		if p := recover(); p != nil {
			data.logger().Error("panic in a hook", "hook", data.Hook, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = atoll.Errorf("", "", atoll.ErrInternal, "panic: %v", p)
		}
	}()
	return hook(ctx, data)
}

// room reports whether another hook may be run.
func (r *Runner) room() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.left) >= r.opts.MaxLeft {
		return atoll.Errorf("", "", atoll.ErrExhausted, "it is not run: hooks that do not end when they are told to are still running (%s)", r.names())
	}
	return nil
}

// names says which hooks are left behind. The caller holds mu.
func (r *Runner) names() string {
	return strings.Join(slices.Sorted(maps.Values(r.left)), ", ")
}

// leave notes that a hook is left behind, and reports false if it has ended.
func (r *Runner) leave(ended chan struct{}, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-ended:
		return false
	default:
	}
	r.left[ended] = what
	return true
}

// forget notes that a hook has ended.
func (r *Runner) forget(ended chan struct{}, log *slog.Logger) {
	r.mu.Lock()
	_, was := r.left[ended]
	delete(r.left, ended)
	r.mu.Unlock()
	if was {
		log.Warn("a hook that was left behind has ended")
	}
}

// Wait returns when no hook that was left behind runs any more. Those that others run
// meanwhile are theirs to wait for. Kinds: ErrTimeout (ctx has ended first; it says
// which still run).
func (r *Runner) Wait(ctx context.Context) error {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.left))
	r.mu.Unlock()
	for _, ended := range all {
		select {
		case <-ended:
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			return atoll.Errorf("hooks", "", atoll.ErrTimeout, "still running: %s: %w", r.names(), ctx.Err())
		}
	}
	return nil
}
