// Package remote is the engine of providers whose sandboxes run at a service: a cluster, or a
// vendor. The service stores everything, so any number of programs can share it, and a program
// that dies loses nothing.
//
// A sandbox has a record at the service. Each start of it is a run: an instance at the service
// that starts once and ends once. In every run, Atoll's guest starts the processes of the
// sandbox and serves its files. A provider implements Backend; the engine does the rest:
// creations that undo themselves, leases that keep two programs from starting one sandbox,
// connections to guests, expiry, and access to the volumes of stopped sandboxes.
package remote

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// Config configures an engine. All fields but Step are required.
type Config struct {
	// Name is the name of the provider.
	Name string
	// Ephemeral means that sandboxes have no volumes.
	Ephemeral bool
	// Caches means that the backend answers from a cache if it may: see Known.
	Caches bool
	// Patience bounds the time to start a caretaker.
	Patience time.Duration
	// ReachTimeout bounds the check whether a guest can be reached, before a stop.
	ReachTimeout time.Duration
	// AnswerTimeout is the longest that a live guest takes to answer.
	AnswerTimeout time.Duration
	// LeaseTTL is the time after which a creation or a start counts as abandoned, unless its
	// program renews the lease.
	LeaseTTL time.Duration
	// Log receives errors that no call can return.
	Log *slog.Logger
	// Step, if set, is called before each step of a creation and of a start, by tests. Its error
	// is the step's.
	Step func(name string) error
}

// An Engine implements a provider on a backend.
type Engine[O any] struct {
	Config
	Guests  *guestconn.Connections // the connections to guests, by sandbox id
	Sweeper *sweeper.Sweeper
	Work    sync.WaitGroup // calls that outlast their callers

	backend Backend[O]
	wrap    func(*Sandbox[O]) atoll.Sandbox
	locks   keymutex.Locks // serialize this program's changes to a sandbox; against other programs, records have revisions

	closing sync.Once
}

// New returns an engine. Call StartSweeps when the backend is ready, and Shut at the end. wrap
// returns the provider's handle of a sandbox.
func New[O any](b Backend[O], wrap func(*Sandbox[O]) atoll.Sandbox, c Config) *Engine[O] {
	return &Engine[O]{Config: c, backend: b, wrap: wrap, Guests: guestconn.New(), Sweeper: sweeper.New()}
}

// StartSweeps starts to sweep in the background. Call it once, when the backend is ready.
func (e *Engine[O]) StartSweeps() { e.Sweeper.Start(e.sweepSandboxes) }

// Shut ends the sweeps, the calls in the background and the connections to guests. It calls
// endWatches in between, which ends what only the backend knows. It returns false if it was
// called before.
func (e *Engine[O]) Shut(endWatches func()) (first bool) {
	e.closing.Do(func() {
		first = true
		e.Sweeper.Close()
		endWatches()
		e.Work.Wait()
		e.Guests.Close()
	})
	return first
}

// A Provider has the methods of atoll.Provider, and of optional interfaces, that an engine
// implements. Providers embed it.
type Provider[O any] struct{ e *Engine[O] }

// Provider returns the methods that the engine implements for a provider.
func (e *Engine[O]) Provider() Provider[O] { return Provider[O]{e} }

// Get implements atoll.Provider.
func (p Provider[O]) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	e := p.e
	n, err := atoll.NormalizeID(id)
	if err != nil || n == "" {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	if _, err := e.backend.Find(ctx, "get", n, Known); err != nil {
		return nil, err
	}
	return e.wrap(e.NewHandle(n)), nil
}

// List implements atoll.Provider.
func (p Provider[O]) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	records, err := p.e.backend.List(ctx, "list")
	if err != nil {
		return nil, err
	}
	var list []atoll.Status
	for _, r := range records {
		if f.Match(r.Status) {
			list = append(list, r.Status)
		}
	}
	slices.SortStableFunc(list, func(a, b atoll.Status) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// Resolve implements atoll.Resolver.
func (p Provider[O]) Resolve(ctx context.Context, project, name string) (string, error) {
	e := p.e
	if err := e.backend.Open(ctx, "get"); err != nil {
		return "", err
	}
	id, err := e.backend.Resolve(ctx, project, name)
	return id, e.backend.WrapError(ctx, "get", name, err)
}

// CleanupTimeout bounds work that must be done even if the caller has gone.
const CleanupTimeout = 30 * time.Second

// RunToEnd calls do with a ctx that outlasts the caller's: the service may do what its client
// no longer waits for, and then nobody would know of it.
func RunToEnd(ctx context.Context, do func(context.Context) error) error {
	return steps.RunDetached(ctx, CleanupTimeout, do)
}

// RunCleanup calls do with a context of its own, even if the caller has gone.
func RunCleanup(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), CleanupTimeout)
	defer cancel()
	return do(ctx)
}

// ErrDoneElsewhere reports that another program has already done it.
var ErrDoneElsewhere = errors.New("another program has done it")

// HasKind reports whether an error already is an atoll.Error with a kind.
func HasKind(err error) bool {
	var known *atoll.Error
	return errors.As(err, &known)
}
