// Package intercept passes every call on a provider, its sandboxes, their processes and files to
// one function as a value. The function may refuse the call, change its context, or look at its
// result and change it.
//
//	p = intercept.New(p, intercept.All, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
//		begin := time.Now()
//		err := next(ctx)
//		log.Info(c.Op, "sandbox", c.Sandbox, "took", time.Since(begin), "err", err)
//		return err
//	})
//
// The provider that New returns implements all optional abilities. Calls of abilities that p
// lacks fail as the helper functions of package atoll do.
package intercept

import (
	"context"
	"iter"

	"github.com/seed46cd37a8/atoll"
)

// A Call describes one call of a method.
type Call struct {
	// Op is the object and the method: "Provider.Create", "Sandbox.Exec", "Process.Wait", "FS.Read".
	Op string
	// Sandbox and Process are the ids of the objects. After a successful Create or Exec, they are
	// those of the new object.
	Sandbox, Process string
	// Project and Name are the arguments that name a project, and an object by name, id, key or
	// path.
	Project, Name string
	// Below are the directories to which SubFiles confined the FS, outermost first.
	Below []string
	// Arg is the most significant other argument, if there is one: a *atoll.Spec, a
	// *atoll.Command, a time.Duration.
	Arg any
	// Result is the method's result, such as a []atoll.Status or an atoll.Exit, after next has
	// returned. Func may replace it by another value of that type; the call panics on any other. It is
	// nil for methods that return only an error.
	Result any
	// Item, if Func sets it before it calls next, changes each value of a stream, such as an atoll.Event,
	// and the error that ends it, before the caller gets them.
	Item func(v any) any
	// On is the wrapped sandbox of the call; nil for calls on a provider.
	On atoll.Sandbox
}

// Next makes the call and returns the error of the method.
type Next func(ctx context.Context) error

// A Func handles calls. The caller gets the error that Func returns, and the result of the method
// if Func has called next. Func may call next at most once. Concurrent calls run concurrently. A
// streaming call, such as Watch or Attach, lasts until the stream ends.
type Func func(ctx context.Context, c *Call, next Next) error

// A Depth selects the objects whose calls a Func sees.
type Depth int

// The depths. Each includes the previous ones.
const (
	Providers Depth = iota
	Sandboxes
	Processes
	All // files, too
)

// New returns a layer around p that passes calls to f, except Info and Close.
func New(p atoll.Provider, depth Depth, f Func) atoll.Provider {
	return &provider{atoll.ProviderLayer{Provider: p}, layer{depth, f}}
}

// A layer holds the arguments of New, for all wrapped objects.
type layer struct {
	depth Depth
	f     Func
}

// invokeFunc passes a call that returns a value to f.
func invokeFunc[T any](ctx context.Context, f Func, c *Call, do func(ctx context.Context) (T, error)) (T, error) {
	err := f(ctx, c, func(ctx context.Context) error {
		result, err := do(ctx)
		c.Result = result
		return err
	})
	if c.Result == nil { // f has not called next
		var none T
		return none, err
	}
	return c.Result.(T), err
}

// streamFunc passes a call that returns a sequence to f. The call begins when the caller reads
// the sequence.
func streamFunc[T any](ctx context.Context, f Func, c *Call, do func(ctx context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		called := false
		err := f(ctx, c, func(ctx context.Context) error {
			called = true
			var last error
			for v, err := range do(ctx) {
				last = err
				switch {
				case c.Item == nil:
				case err == nil:
					v = c.Item(v).(T)
				default:
					err = c.Item(err).(error)
				}
				if !yield(v, err) {
					break
				}
			}
			return last
		})
		if err != nil && !called {
			var none T
			yield(none, err)
		}
	}
}
