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

// Options configure a Runner. The zero value is ready to use.
type Options struct {
	// Timeout bounds a hook; 0 means DefaultTimeout. Then its context ends.
	Timeout time.Duration
	// Grace is the time to wait for a hook after its context has ended; 0 means
	// DefaultGrace. A hook that still runs then is abandoned: its goroutine cannot be
	// ended.
	Grace time.Duration
	// MaxLeft is the most abandoned hooks that may still run; 0 means DefaultMaxLeft.
	// At this number the Runner runs no other hook.
	MaxLeft int
	// Log receives the start and end of each hook, with its duration and error; nil
	// discards them.
	Log *slog.Logger
	// Observe receives the outcome of each hook for metrics, after it has returned, was
	// abandoned or was not run; nil means no metrics. It may be called concurrently.
	Observe func(hook string, took time.Duration, err error)
}

// The default bounds of hooks.
const (
	DefaultTimeout = 10 * time.Minute
	DefaultGrace   = 5 * time.Second
	DefaultMaxLeft = 16
)

// A Runner runs hooks. Its methods may be called concurrently.
type Runner struct {
	opts Options
	log  *slog.Logger

	mu        sync.Mutex
	abandoned map[chan struct{}]string // names of abandoned hooks, by a channel that is closed when the hook has ended
}

// New returns a Runner. It only holds abandoned hooks; Wait waits for them.
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
	return &Runner{opts: opts, log: opts.Log, abandoned: map[chan struct{}]string{}}
}

// ColdStart runs OnColdStart. Its error must fail the creation of the sandbox: the
// caller removes everything it has created, and returns the error.
func (r *Runner) ColdStart(ctx context.Context, hooks Hooks, data *HookData) error {
	return r.ExecuteHook(ctx, OnColdStart, hooks.OnColdStart, data)
}

// Message runs OnMessage, even if ctx has ended, since the message has been sent. It
// logs the error.
func (r *Runner) Message(ctx context.Context, hooks Hooks, data *HookData) {
	_ = r.ExecuteHook(context.WithoutCancel(ctx), OnMessage, hooks.OnMessage, data)
}

// StreamFinish runs OnStreamFinish, even if ctx has ended, so also for failed turns and
// those whose client has gone. It logs the error.
func (r *Runner) StreamFinish(ctx context.Context, hooks Hooks, data *HookData) {
	_ = r.ExecuteHook(context.WithoutCancel(ctx), OnStreamFinish, hooks.OnStreamFinish, data)
}

// Terminate runs OnTerminate, even if ctx has ended. The caller ends the sandbox in any
// case, and then reports the error as a warning.
func (r *Runner) Terminate(ctx context.Context, hooks Hooks, data *HookData) error {
	return r.ExecuteHook(context.WithoutCancel(ctx), OnTerminate, hooks.OnTerminate, data)
}

// ExecuteHook runs a hook on a copy of data, and logs it; a nil hook does nothing. It
// returns within the Timeout and the Grace of the Options, and at most the Grace after
// ctx has ended.
//
// Kinds: those of the hook; ErrTimeout (it exceeded the timeout); ErrInternal (it
// panicked; the stack is logged); ErrExhausted (it was not run, since too many
// abandoned hooks are running).
func (r *Runner) ExecuteHook(ctx context.Context, name string, hook HookFunc, data *HookData) error {
	if hook == nil {
		return nil
	}
	log := r.log.With("hook", name, "conversation", data.ConversationID, "sandbox", data.sandboxID())
	log.Debug("hook begins")
	begin := time.Now()
	err := r.runHook(ctx, name, hook, data, log)
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

func (r *Runner) runHook(ctx context.Context, name string, hook HookFunc, data *HookData, log *slog.Logger) error {
	if err := r.checkCapacity(); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	own := data.cloneData()
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
			r.forgetHook(ended, log)
		}()
		err = callHook(within, hook, own)
	}()
	err, ok := r.awaitResult(within, result)
	if !ok && !r.abandonHook(ended, name+" of "+data.ConversationID) {
		err, ok = <-result, true // it has just ended
	}
	if ok && info != nil {
		*data.SandboxInfo = *info
	}
	switch {
	case !ok:
		return atoll.Errorf("", "", atoll.ErrTimeout, "hook still running %s after its context ended; abandoned it: a hook has to return when its context ends", r.opts.Grace)
	case err != nil && ctx.Err() == nil && within.Err() != nil:
		return atoll.Errorf("", "", atoll.ErrTimeout, "hook took longer than %s: %w", r.opts.Timeout, err)
	}
	return err
}

// awaitResult returns the hook's result, and false if the hook does not return in time.
func (r *Runner) awaitResult(ctx context.Context, result <-chan error) (error, bool) {
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

// callHook calls a hook, and turns a panic into an error.
func callHook(ctx context.Context, hook HookFunc, data *HookData) (err error) {
	defer func() {
		if p := recover(); p != nil {
			data.loggerOrDiscard().Error("panic in a hook", "hook", data.Hook, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = atoll.Errorf("", "", atoll.ErrInternal, "panic: %v", p)
		}
	}()
	return hook(ctx, data)
}

// checkCapacity returns ErrExhausted if too many abandoned hooks are running.
func (r *Runner) checkCapacity() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.abandoned) >= r.opts.MaxLeft {
		return atoll.Errorf("", "", atoll.ErrExhausted, "hook not run: too many hooks are still running after their contexts ended (%s)", r.abandonedNames())
	}
	return nil
}

// abandonedNames returns the names of abandoned hooks. The caller holds mu.
func (r *Runner) abandonedNames() string {
	return strings.Join(slices.Sorted(maps.Values(r.abandoned)), ", ")
}

// abandonHook records an abandoned hook, and reports false if it has ended.
func (r *Runner) abandonHook(ended chan struct{}, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-ended:
		return false
	default:
	}
	r.abandoned[ended] = what
	return true
}

// forgetHook removes a hook that has ended from the abandoned ones.
func (r *Runner) forgetHook(ended chan struct{}, log *slog.Logger) {
	r.mu.Lock()
	_, was := r.abandoned[ended]
	delete(r.abandoned, ended)
	r.mu.Unlock()
	if was {
		log.Warn("an abandoned hook has ended")
	}
}

// Wait returns when all hooks abandoned before the call have ended. Hooks abandoned
// during the call are left to their callers. Kinds: ErrTimeout (ctx ended first; the
// error names the running hooks).
func (r *Runner) Wait(ctx context.Context) error {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.abandoned))
	r.mu.Unlock()
	for _, ended := range all {
		select {
		case <-ended:
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			return atoll.Errorf("hooks", "", atoll.ErrTimeout, "still running: %s: %w", r.abandonedNames(), ctx.Err())
		}
	}
	return nil
}
