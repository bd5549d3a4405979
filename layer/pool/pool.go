// Package pool is a layer that keeps sandboxes running ahead of need: whoever
// creates one like them has it at once.
//
//	p, err := pool.New(p, sqlite.New(path), pool.Options{Server: true, Entries: []pool.Entry{
//		{Name: "python", Spec: atoll.Spec{Image: "python"}, Min: 5},
//	}})
//
// A sandbox of the pool is given to those who ask for just what it is, and for
// nothing else: see Fingerprint. Name, labels and time to live, which each has of
// its own, it gets then. As backends cannot change the first two, they are
// written down in a store, where every program that uses it finds them; those
// programs have the layer, too, without entries.
//
// What nobody has asked for yet is its program's stock. It is in no List and no
// Watch, and cannot be had by its id. It goes when its program closes the layer, or
// was killed and the next one with Options.Server begins; programs with another
// store, on the same backend, see it as sandboxes without a name, and leave it
// alone.
//
// An id says whether its sandbox was made by a pool, so that commands in all
// others, and in those that this program has heard of, never wait for the store.
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
	DefaultMin      = 3
	DefaultMaxBoots = 2
	DefaultPatience = 2 * time.Second
)

// Options say what is kept.
type Options struct {
	Entries []Entry
	// MaxBoots is how many sandboxes are made at once, over all entries; 0 means
	// DefaultMaxBoots.
	MaxBoots int
	// Patience is how long sandboxes may take to answer whoever is about to get
	// one; 0 means DefaultPatience. One that does not answer is removed.
	Patience time.Duration
	// Image is what the provider calls the image of sandboxes that name none, if it
	// has a name: who asks for it by that asks for the same.
	Image string
	// Server says that the program is there for long, and removes what programs
	// that were killed have left of their stock.
	Server bool
	// Log is told of what cannot be returned; nil discards.
	Log *slog.Logger

	step func(name string) // for tests: called after each step, with its name
	look time.Duration     // for tests: how often stock is looked at
	rest time.Duration     // for tests: how long to wait after a first failure
	hold time.Duration     // for tests: how long what is reserved is kept
}

// An Entry is one pool.
type Entry struct {
	Name string // see atoll.ValidName
	// Spec is what its sandboxes are made from. Who is to get one must ask for the
	// same, but for what each has of its own. With a TTL, whichever, they are for
	// those who ask for any.
	Spec atoll.Spec
	Min  int // how many there are to be; 0 means DefaultMin
}

// A Provider is the layer.
type Provider struct {
	atoll.ProviderLayer
	store store.Store
	opts  Options
	log   *slog.Logger
	scope string // of what it writes down: the provider below
	caps  atoll.Caps
	names keymutex.Locks // of sandboxes that are being created
	goers keymutex.Locks // ids of what is being removed

	shelves []*shelf
	byPrint map[string]*shelf

	wake    chan struct{} // the filler has something to do; capacity 1
	check   chan struct{} // somebody did not answer; capacity 1
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup // the filler, and what it has begun
	closing sync.Once

	mu        sync.Mutex
	closed    bool
	boots     int
	unmatched int64
	mine      map[string]struct{}     // stock of this program, also what is not made or removed yet
	reserved  map[string]*reservation // of these: what waits for who has its id
	doomed    map[string]*shelf       // of these: what is to be removed, and could not be yet
	known     map[string]*claim       // what was claimed, as far as this program has heard
	readers   map[chan struct{}]struct{}
}

// A shelf is an Entry and what there is of it.
type shelf struct {
	Entry
	print string

	// Guarded by Provider.mu.
	warm    []item // oldest first
	births  int
	popped  int   // somebody is about to get these, or has reserved them
	stats   Stats // without HitRate
	problem string
	rest    time.Duration // after the next failure
	until   time.Time     // no birth before
}

// An item is one sandbox on a shelf.
type item struct {
	sb   atoll.Sandbox
	made time.Time
}

// New returns p with opts.Entries kept ready, and with what other programs have
// claimed as it was claimed. Claims and stock are written down in s, which is this
// layer's own, and not opened without need. Close ends the births that are going
// on, removes the stock, and closes p and s. Kinds: ErrInvalid (of an entry).
func New(p atoll.Provider, s store.Store, opts Options) (*Provider, error) {
	opts.MaxBoots = cmp.Or(opts.MaxBoots, DefaultMaxBoots)
	opts.Patience = cmp.Or(opts.Patience, DefaultPatience)
	opts.rest = cmp.Or(opts.rest, time.Second)
	opts.hold = cmp.Or(opts.hold, atoll.ReserveTime)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.step == nil {
		opts.step = func(string) {}
	}
	info := p.Info()
	l := &Provider{
		ProviderLayer: atoll.ProviderLayer{Provider: p}, store: s, opts: opts, log: opts.Log, scope: info.Name, caps: info.Caps,
		byPrint: map[string]*shelf{}, wake: make(chan struct{}, 1), check: make(chan struct{}, 1),
		mine: map[string]struct{}{}, reserved: map[string]*reservation{}, doomed: map[string]*shelf{}, known: map[string]*claim{}, readers: map[chan struct{}]struct{}{},
	}
	if opts.MaxBoots < 0 || opts.Patience < 0 {
		return nil, atoll.Errorf("open", "pool", atoll.ErrInvalid, "boots at once and patience must be positive")
	}
	for _, e := range opts.Entries {
		if err := l.add(e); err != nil {
			return nil, err
		}
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if opts.Server || len(l.shelves) > 0 {
		l.work.Go(l.keep)
		l.work.Go(l.care)
	}
	return l, nil
}

// add adds an entry.
func (l *Provider) add(e Entry) error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("open", e.Name, atoll.ErrInvalid, "pool "+e.Name+": "+format, args...)
	}
	s, err := e.Spec.MadeBy(l.scope)
	switch {
	case !atoll.ValidName(e.Name):
		return atoll.Errorf("open", "pool", atoll.ErrInvalid, "pool %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", e.Name)
	case e.Min < 0:
		return bad("%d sandboxes: must be positive, or 0 for %d", e.Min, DefaultMin)
	case err != nil:
		return err
	}
	if err := e.Spec.Validate(); err != nil {
		return err
	}
	if field := unfit(&e.Spec); field != "" || e.Spec.Name != "" || len(e.Spec.Labels) > 0 {
		return bad("%s: cannot be said of sandboxes that are made for nobody yet", cmp.Or(field, "name and labels"))
	}
	if e.Spec.TTL > 0 && !l.caps.Extend {
		return bad("ttl: provider %s cannot change that of a sandbox later on", l.scope)
	}
	s.ID = ""
	e.Spec, e.Min = *s, cmp.Or(e.Min, DefaultMin)
	sh := &shelf{Entry: e, print: l.fingerprint(s), rest: l.opts.rest}
	if other := l.byPrint[sh.print]; other != nil {
		return bad("is the same as pool %s: one of them is enough", other.Name)
	}
	if slices.ContainsFunc(l.shelves, func(other *shelf) bool { return other.Name == e.Name }) {
		return bad("there are two of this name")
	}
	l.shelves, l.byPrint[sh.print] = append(l.shelves, sh), sh
	return nil
}

// Info implements atoll.Provider.
func (l *Provider) Info() atoll.Info { return l.ProviderLayer.Provider.Info() }

// closeTime is how long Close waits for stock to be removed. What is left then, the
// next program with Options.Server removes.
const closeTime = 30 * time.Second

// Close implements atoll.Provider.
func (l *Provider) Close() (err error) {
	l.closing.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.cancel()
		l.work.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		l.empty(ctx)
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
	l.mu.Lock()
	defer l.mu.Unlock()
	report.Unmatched += l.unmatched
	for _, sh := range l.shelves {
		one := Pool{
			Name: sh.Name, Provider: l.scope, Spec: *sh.Spec.Clone(), Min: sh.Min, Warm: len(sh.warm), Booting: sh.births,
			Stock: make([]string, 0, len(sh.warm)), Problem: sh.problem, Stats: sh.stats.Add(Stats{}),
		}
		for _, it := range sh.warm {
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
