// Package pool is a layer that creates sandboxes ahead of need, so that a Create
// with a matching spec returns at once.
//
//	p, err := pool.New(p, sqlite.New(path), pool.Options{Server: true, Entries: []pool.Entry{
//		{Name: "python", Spec: atoll.Spec{Image: "python"}, Min: 5},
//	}})
//
// The pool gives a sandbox only to a caller whose spec matches exactly: see
// Fingerprint. A claimed sandbox then gets its name, labels and time to live from
// the caller's spec. Backends cannot change the name and the labels of a sandbox,
// so the layer records them in a store. Every program that shares the store must
// have the layer, too, without entries.
//
// Unclaimed sandboxes are the stock of the program that created them. List and
// Watch omit them, and Get and Resolve do not find them by ID. The layer removes
// its stock on Close. If a program was killed, the next program with Options.Server
// removes what it left. Programs with another store on the same backend see stock
// as sandboxes without a name, and leave it alone.
//
// An ID shows whether a pool created the sandbox. Commands in other sandboxes, and
// in those that this program knows, never wait for the store.
package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Defaults of Options and Entry.
const (
	DefaultMin           = 3
	DefaultMaxCreations  = 2
	DefaultHealthTimeout = 2 * time.Second
)

// Options configure the layer.
type Options struct {
	Entries []Entry
	// MaxCreations limits concurrent creations over all entries; 0 means
	// DefaultMaxCreations.
	MaxCreations int
	// HealthTimeout is the time limit for the health check before a sandbox is given
	// away; 0 means DefaultHealthTimeout. The layer removes a sandbox that does not
	// answer in time.
	HealthTimeout time.Duration
	// Image is the provider's default image, if it has a name. A spec that names it
	// matches an entry without an image.
	Image string
	// Stock returns the stock that the provider itself has, if any. Reports have it as the pool StockName.
	Stock func() atoll.Stock
	// Server declares a long-running program. It removes the stock that killed
	// programs have left.
	Server bool
	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	onStep     func(name string) // for tests: called after each step, with its name
	checkEvery time.Duration     // for tests: the interval between checks of the stock
	backoff    time.Duration     // for tests: the wait after a first failure
	reserveTTL time.Duration     // for tests: the lifetime of a reservation
}

// An Entry configures one pool.
type Entry struct {
	Name string // see atoll.ValidName
	// Spec is the spec of the pool's sandboxes, without name and labels. An entry
	// with a TTL, whatever its value, serves specs with any TTL.
	Spec atoll.Spec
	Min  int // number of warm sandboxes; 0 means DefaultMin
}

// A Provider is the layer.
type Provider struct {
	atoll.ProviderLayer
	store        store.Store
	opts         Options
	log          *slog.Logger
	scope        string // the name of the provider below, in each record
	caps         atoll.Caps
	removalLocks keymutex.Locks // by sandbox ID, held during a removal

	entries       []*entryState
	byFingerprint map[string]*entryState

	wake       chan struct{} // wakes the filler; capacity 1
	recheck    chan struct{} // asks for a check of the stock; capacity 1
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup // the filler, maintenance and what they have started
	closeOnce  sync.Once

	mu          sync.Mutex
	closed      bool
	creating    int
	unmatched   int64
	ownStock    map[string]struct{}     // stock of this program, with sandboxes in creation or removal
	reserved    map[string]*reservation // by sandbox ID
	toRemove    map[string]*entryState  // sandboxes of the stock whose removal has not succeeded yet
	knownClaims map[string]*claim       // cache of claims in the store
	watchers    map[*watcher]struct{}
}

// entryState is an Entry and the state of its stock.
type entryState struct {
	Entry
	fingerprint string

	// Guarded by Provider.mu.
	warm     []stockItem // oldest first
	creating int
	pending  int           // popped for a caller, or reserved
	made     chan struct{} // closed after the next creation
	waiting  int           // callers that wait for a creation
	stats    Stats         // without HitRate
	problem  string
	backoff  time.Duration // the wait after the next failure
	retryAt  time.Time     // no creation before
}

// A stockItem is one warm sandbox.
type stockItem struct {
	sb      atoll.Sandbox
	created time.Time
}

// New returns p with a pool for each of opts.Entries, and with the claims of other
// programs applied. The layer records claims and stock in s, which it owns and
// opens only when needed. Close cancels creations, removes the stock, and closes p
// and s. Kinds: ErrInvalid (of an entry).
func New(p atoll.Provider, s store.Store, opts Options) (*Provider, error) {
	opts.MaxCreations = cmp.Or(opts.MaxCreations, DefaultMaxCreations)
	opts.HealthTimeout = cmp.Or(opts.HealthTimeout, DefaultHealthTimeout)
	opts.backoff = cmp.Or(opts.backoff, time.Second)
	opts.reserveTTL = cmp.Or(opts.reserveTTL, atoll.ReservationTTL)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.onStep == nil {
		opts.onStep = func(string) {}
	}
	info := p.Info()
	l := &Provider{
		ProviderLayer: atoll.ProviderLayer{Provider: p}, store: s, opts: opts, log: opts.Log, scope: info.Name, caps: info.Caps,
		byFingerprint: map[string]*entryState{}, wake: make(chan struct{}, 1), recheck: make(chan struct{}, 1),
		ownStock: map[string]struct{}{}, reserved: map[string]*reservation{}, toRemove: map[string]*entryState{}, knownClaims: map[string]*claim{}, watchers: map[*watcher]struct{}{},
	}
	if opts.MaxCreations < 0 || opts.HealthTimeout < 0 {
		return nil, atoll.Errorf("open", "pool", atoll.ErrInvalid, "max boots and patience must not be negative")
	}
	for _, e := range opts.Entries {
		if err := l.addEntry(e); err != nil {
			return nil, err
		}
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if opts.Server || len(l.entries) > 0 {
		l.background.Go(l.runFiller)
		l.background.Go(l.runMaintenance)
	}
	return l, nil
}

// addEntry validates e and adds it.
func (l *Provider) addEntry(e Entry) error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("open", e.Name, atoll.ErrInvalid, "pool "+e.Name+": "+format, args...)
	}
	s, err := e.Spec.Complete(l.scope)
	switch {
	case !atoll.ValidName(e.Name):
		return atoll.Errorf("open", "pool", atoll.ErrInvalid, "pool %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", e.Name)
	case e.Min < 0:
		return bad("min %d must be positive, or 0 for %d", e.Min, DefaultMin)
	case err != nil:
		return err
	}
	if field := unpoolableField(&e.Spec); field != "" || e.Spec.Name != "" || len(e.Spec.Labels) > 0 {
		return bad("%s: not allowed in the spec of a pool; remove it", cmp.Or(field, "name and labels"))
	}
	if e.Spec.TTL > 0 && !l.caps.Extend {
		return bad("ttl: provider %s cannot change the ttl of a sandbox; remove it", l.scope)
	}
	s.ID = ""
	e.Spec, e.Min = *s, cmp.Or(e.Min, DefaultMin)
	es := &entryState{Entry: e, fingerprint: l.fingerprintSpec(s), backoff: l.opts.backoff, made: make(chan struct{})}
	other := l.byFingerprint[es.fingerprint]
	named := slices.ContainsFunc(l.entries, func(other *entryState) bool { return other.Name == e.Name })
	switch {
	case other != nil:
		return bad("same spec as pool %s; remove one of them", other.Name)
	case named:
		return bad("duplicate name; rename one of them")
	}
	l.entries, l.byFingerprint[es.fingerprint] = append(l.entries, es), es
	return nil
}

// Info implements atoll.Provider.
func (l *Provider) Info() atoll.Info { return l.ProviderLayer.Provider.Info() }

// closeTimeout limits the removal of stock in Close. The next program with
// Options.Server removes the rest.
const closeTimeout = 30 * time.Second

// Close implements atoll.Provider.
func (l *Provider) Close() (err error) {
	l.closeOnce.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.cancel()
		l.background.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		l.removeAllStock(ctx)
		err = errors.Join(l.ProviderLayer.Close(), l.store.Close())
	})
	return err
}

// Pools implements pool.Reporter.
func (l *Provider) Pools(ctx context.Context) (Report, error) {
	report, err := ReportOf(ctx, l.Provider)
	if err != nil {
		return report, err
	}
	unmatchedByStock := l.addStock(&report)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.opts.Stock == nil:
		report.Unmatched += l.unmatched
	case len(l.entries) == 0:
		report.Unmatched += unmatchedByStock
	default: // a creation that matches neither counts in both
		report.Unmatched += min(l.unmatched, unmatchedByStock)
	}
	for _, es := range l.entries {
		one := Pool{
			Name: es.Name, Provider: l.scope, Spec: *es.Spec.Clone(), Min: es.Min, Warm: len(es.warm), Booting: es.creating,
			Stock: make([]string, 0, len(es.warm)), Problem: es.problem, Stats: es.stats.Add(Stats{}),
		}
		for _, it := range es.warm {
			one.Stock = append(one.Stock, it.sb.ID())
		}
		report.Pools, report.Total = append(report.Pools, one), report.Total.Add(one.Stats)
	}
	return report, nil
}

var (
	_ atoll.Provider       = (*Provider)(nil)
	_ atoll.Resolver       = (*Provider)(nil)
	_ Reporter             = (*Provider)(nil)
	_ atoll.Reserver       = (*Provider)(nil)
	_ atoll.SecretKeeper   = (*Provider)(nil)
	_ atoll.SnapshotStore  = (*Provider)(nil)
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ registry.Reconciler  = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
