// Package intercept turns every call on a provider, its sandboxes, their processes and files
// into a value that one function sees. The function may refuse the call, change its context,
// or look at the result.
//
//	p = intercept.New(p, intercept.All, func(ctx context.Context, c *intercept.Call, next intercept.Next) error {
//		begin := time.Now()
//		err := next(ctx)
//		log.Info(c.Op, "sandbox", c.Sandbox, "took", time.Since(begin), "err", err)
//		return err
//	})
//
// The provider that New returns has all optional abilities; the helpers of those answer for
// abilities that p lacks.
package intercept

import (
	"context"
	"iter"

	"github.com/seed46cd37a8/atoll"
)

// A Call is one call of a method.
type Call struct {
	// Op is the object and the method: "Provider.Create", "Sandbox.Exec", "Process.Wait", "FS.Read".
	Op string
	// Sandbox and Process are the ids of the objects; after a Create or an Exec that succeeded,
	// those of the new ones.
	Sandbox, Process string
	// Project and Name are the project and the name, id, key or path that the caller gave.
	Project, Name string
	// Below are the directories that an FS is confined to.
	Below []string
	// Arg is the argument that says more, if there is one: a *atoll.Spec, a *atoll.Command, a time.Duration.
	Arg any
	// Result is what the method returned besides an error, once next has returned: a
	// []atoll.Status, an atoll.Exit. It is nil for methods that return an error only.
	Result any
	// On is the sandbox that the call is made on, as the layer below has it; nil for calls on a provider.
	On atoll.Sandbox
}

// Next makes the call. Its error is the method's.
type Next func(ctx context.Context) error

// A Func sees the calls. The caller gets the error that it returns, with the result if it has called
// next. It calls next once at most, and concurrently for concurrent calls. A call that streams,
// such as Watch and Attach, lasts until the stream ends.
type Func func(ctx context.Context, c *Call, next Next) error

// A Depth says on which objects calls are intercepted.
type Depth int

// The depths; each includes those before it.
const (
	Providers Depth = iota
	Sandboxes
	All // processes and files, too
)

// New returns a layer around p whose calls f sees. Info and Close aren't among them.
func New(p atoll.Provider, depth Depth, f Func) atoll.Provider {
	return &provider{atoll.ProviderLayer{Provider: p}, layer{depth, f}}
}

// A layer is what the objects of one New share.
type layer struct {
	depth Depth
	f     Func
}

// invoke makes a call that returns a value.
func invoke[T any](ctx context.Context, f Func, c *Call, do func(ctx context.Context) (T, error)) (T, error) {
	var result T
	err := f(ctx, c, func(ctx context.Context) error {
		var err error
		result, err = do(ctx)
		c.Result = result
		return err
	})
	return result, err
}

// stream makes a call that returns a sequence. The call begins when the sequence is read.
func stream[T any](ctx context.Context, f Func, c *Call, do func(ctx context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		called := false
		err := f(ctx, c, func(ctx context.Context) error {
			called = true
			var last error
			for v, err := range do(ctx) {
				last = err
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
