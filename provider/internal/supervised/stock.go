package supervised

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A Stock describes sandboxes that boot ahead of need. A booted sandbox has no identity yet: Create gives it the id, the
// files and the rest of the spec.
type Stock struct {
	// Max is the most of them at a time; 0 means none. Their number follows the demand.
	Max int
	// Spec is the spec of the sandboxes, without limits that the provider cannot enforce. A Create gets one if its spec differs only in what a sandbox can get after its boot,
	// and in limits that other calls of Create had, too.
	Spec atoll.Spec
	// Image is the name of the image of a spec without one.
	Image string
	// HasRoom reports whether the machine has room for another one beside the first; nil means always.
	HasRoom func() bool
}

// A stock has the booted sandboxes of a provider.
type stock struct {
	p     *Provider
	opts  Stock
	shape string // of opts.Spec

	wake chan struct{} // wakes fillForever; capacity 1
	quit context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	kinds   []*kind             // at least one; the first has the limits of opts.Spec
	ready   []*bootedSupervisor // oldest first
	booting *kind               // nil if none boots
	booted  chan struct{}       // closed at the end of the next boot
	waiting bool                // a Create waits for the sandbox that boots
	creates int                 // calls of Create in progress, which come first
	created time.Time           // when the last of them returned
	short   time.Time           // since when fewer are ready than wanted; zero if enough are
	stats   atoll.Stock
}

// A bootedSupervisor waits for a sandbox, whose engine has booted already.
type bootedSupervisor struct {
	*spareSupervisor
	kind  *kind
	begun *statedir.Begun // becomes the sandbox's directory
	run   string          // its run directory
}

// bootedVolume is the directory in that of a booted sandbox which becomes its data volume.
const bootedVolume = "volume"

const (
	bootDelay    = 100 * time.Millisecond // after a Create: the first command of its caller comes first
	shortest     = 2 * time.Second        // after which a short stock does not wait for calls of Create any longer
	bootTimeout  = time.Minute            // of one boot
	firstPause   = time.Second            // after a boot that failed; it doubles with each failure
	longestPause = 5 * time.Minute        // after boots that failed
	roomInterval = time.Minute            // between looks for room, and adaptions to the demand
)

func newStock(p *Provider) *stock {
	s := &stock{p: p, opts: p.opts.Stock, wake: make(chan struct{}, 1), booted: make(chan struct{})}
	s.quit, s.stop = context.WithCancel(context.Background())
	s.opts.Spec.Resources = keepEnforced(s.opts.Spec.Resources, p.opts.Info.Caps)
	s.kinds = []*kind{newKind(s.opts.Spec.Resources.WithDefaults(), newDemand(s.opts.Max, time.Now()))}
	s.shape = bootShape(&s.opts.Spec, s.opts.Image)
	if s.opts.Max > 0 {
		s.work.Go(s.fillForever)
	}
	return s
}

// keepEnforced returns the limits in r that a provider with caps enforces.
func keepEnforced(r atoll.Resources, caps atoll.Caps) atoll.Resources {
	if !caps.MemoryLimit {
		r.Memory = 0
	}
	if !caps.CPULimit {
		r.CPUs = 0
	}
	return r
}

// bootShape returns a text that is equal for two specs if they differ only in limits and in what a sandbox can get after its
// boot. image is the name of the default image.
func bootShape(spec *atoll.Spec, image string) string {
	s := *spec
	s.ID, s.Name, s.Project, s.Provider, s.Labels = "", "", "", "", nil
	s.Cmd, s.Env, s.Workdir, s.User, s.TTY, s.OpenStdin = nil, nil, "", "", nil, false
	s.TTL, s.IdleStop, s.IdleRemove, s.AutoRemove = 0, 0, false, false
	s.System = atoll.System{}
	s.Resources = atoll.Resources{GPUs: s.Resources.GPUs}
	if !s.Publishes() {
		s.Ports = nil
	}
	if s.Image == image {
		s.Image = ""
	}
	if s.Network.Mode == atoll.NetworkNone {
		s.Network.Mode = ""
	}
	text, err := json.Marshal(s)
	if err != nil { // a Spec has only fields that JSON can encode
		panic(err)
	}
	return string(text)
}

// beginCreate counts a call of Create, during which no sandbox begins to boot ahead, until end is called. A call that takes
// long, and one of a pool, which nobody waits for, do not count.
func (s *stock) beginCreate(spec *atoll.Spec) (end func()) {
	if spec.System.Warm {
		return func() {}
	}
	s.mu.Lock()
	s.creates++
	s.mu.Unlock()
	done := sync.OnceFunc(func() {
		s.mu.Lock()
		s.creates--
		s.created = time.Now()
		s.mu.Unlock()
		s.wakeUp()
	})
	slow := time.AfterFunc(slowStart, done)
	return func() {
		slow.Stop()
		done()
	}
}

func (s *stock) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look again anyway
	}
}

// takeFor returns a booted sandbox for a complete spec, or nil if there is none. If one boots at this moment and no other
// Create waits for it, takeFor waits: it is ready sooner than a new one, unless its boot is slow.
func (s *stock) takeFor(ctx context.Context, spec *atoll.Spec) (*bootedSupervisor, error) {
	if s.opts.Max == 0 {
		return nil, nil
	}
	counts := !spec.System.Warm // otherwise a pool asks, which has statistics of its own
	var k *kind
	if bootShape(spec, s.opts.Image) == s.shape && !s.p.dir.Volumes().Has(spec.Project, statedir.DataVolume(spec.ID)) {
		k = s.findKind(spec.Resources.WithDefaults(), counts)
	}
	if k == nil {
		s.countUnmatched(counts)
		return nil, nil
	}
	for waited := false; ; {
		b, boots := s.popBooted(k, !waited)
		switch {
		case b != nil && b.checkAlive() == nil:
			s.countRequest(k, counts, false)
			return b, nil
		case b != nil:
			s.removeBooted(b)
			continue
		case boots == nil:
			s.countRequest(k, counts, true)
			return nil, nil
		}
		waited = true
		select {
		case <-boots:
		case <-time.After(slowStart):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// findKind returns the kind with these limits, or nil if it is new. If learn is true, the stock has it from the next request on.
func (s *stock) findKind(limits atoll.Resources, learn bool) *kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		if k.limits == limits {
			return k
		}
	}
	if learn {
		s.kinds = addKind(s.kinds, newKind(limits, demand{most: s.opts.Max, asked: time.Now()}))
	}
	return nil
}

// popBooted returns the oldest booted sandbox of a kind. If there is none, and one boots for which nobody waits, it returns a
// channel that is closed at the end of that boot; but only if wait is true.
func (s *stock) popBooted(k *kind, wait bool) (b *bootedSupervisor, boots <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.ready, func(b *bootedSupervisor) bool { return b.kind == k }); i >= 0 {
		b = s.ready[i]
		s.ready = slices.Delete(s.ready, i, i+1)
	} else if wait && s.booting == k && !s.waiting {
		s.waiting = true
		boots = s.booted
	}
	return b, boots
}

// countRequest adapts the demand to a request, which counts in the statistics if counts is true.
func (s *stock) countRequest(k *kind, counts, missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.noteRequest(missed, time.Now())
	switch {
	case counts && missed:
		s.stats.Misses++
	case counts:
		s.stats.Hits++
	}
}

func (s *stock) countUnmatched(counts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counts {
		s.stats.Unmatched++
	}
}

// returnOrKill takes back a booted sandbox that a Create could not use. It kills it unless it is as it was.
func (s *stock) returnOrKill(b *bootedSupervisor, unchanged bool) {
	if unchanged && s.addBooted(b) {
		return
	}
	s.removeBooted(b)
}

// addBooted adds a booted sandbox, unless the stock is closed.
func (s *stock) addBooted(b *bootedSupervisor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quit.Err() != nil {
		return false
	}
	s.ready = append(s.ready, b)
	return true
}

// removeBooted ends a booted sandbox and removes what it has.
func (s *stock) removeBooted(b *bootedSupervisor) {
	s.mu.Lock()
	s.stats.Removed++
	s.mu.Unlock()
	err := b.killAndRemove()
	if err := errors.Join(err, statedir.RemoveRun(b.run), b.begun.Remove()); err != nil {
		s.p.log.Warn("booted sandbox", "err", err)
	}
	s.p.dir.TidyRun(filepath.Dir(b.run))
}

// fillForever boots sandboxes, one at a time, until the stock is closed.
func (s *stock) fillForever() {
	for s.quit.Err() == nil {
		surplus, rest := s.planBoot()
		for _, b := range surplus {
			s.removeBooted(b)
		}
		if rest == 0 {
			s.bootOne()
			continue
		}
		select {
		case <-s.quit.Done():
		case <-s.wake:
		case <-time.After(rest):
		}
	}
}

// planBoot returns the booted sandboxes that are too many or have died, and the time until the next one may boot; 0 means that
// one of the kind booting does now.
func (s *stock) planBoot() (surplus []*bootedSupervisor, rest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.kinds = ageKinds(s.kinds, now)
	missing := shareStock(s.kinds, s.opts.Max, now)
	s.ready = slices.DeleteFunc(s.ready, func(b *bootedSupervisor) bool {
		if missing[b.kind] == 0 || b.checkAlive() != nil {
			surplus = append(surplus, b)
			return true
		}
		missing[b.kind]--
		return false
	})
	next := chooseKind(s.kinds, missing, now)
	if next == nil {
		s.short = time.Time{}
		return surplus, roomInterval
	}
	if s.short.IsZero() {
		s.short = now
	}
	wait := time.Until(next.retry)
	if patience := time.Until(s.short.Add(shortest)); patience > 0 && s.creates > 0 {
		wait = max(wait, patience)
	} else if patience > 0 {
		wait = max(wait, time.Until(s.created.Add(bootDelay)))
	}
	switch {
	case len(s.ready) > 0 && s.opts.HasRoom != nil && !s.opts.HasRoom():
		return surplus, roomInterval
	case wait > 0:
		return surplus, min(wait, roomInterval)
	}
	s.booting = next
	return surplus, 0
}

// bootOne boots a sandbox of the kind booting and adds it to the stock.
func (s *stock) bootOne() {
	k := s.booting // only this goroutine changes it
	b, err := s.bootSandbox(k)
	added := err == nil && s.addBooted(b)
	s.mu.Lock()
	s.booting, s.waiting = nil, false
	close(s.booted)
	s.booted = make(chan struct{})
	s.stats.Problem = ""
	switch {
	case err == nil:
		s.stats.Created++
		k.pause = firstPause
	case s.quit.Err() == nil:
		s.stats.Problem = err.Error()
		k.retry, k.pause = time.Now().Add(k.pause), min(2*k.pause, longestPause)
	}
	s.mu.Unlock()
	if err == nil && !added {
		s.removeBooted(b)
	}
}

// bootSandbox boots a sandbox of a kind, without an identity.
func (s *stock) bootSandbox(k *kind) (_ *bootedSupervisor, err error) {
	ctx, cancel := context.WithTimeout(s.quit, bootTimeout)
	defer cancel()
	p, id := s.p, atoll.NewID()
	limited := s.opts.Spec
	limited.Resources = k.limits
	spec, err := limited.Complete(p.opts.Info.Name)
	if err != nil {
		return nil, err
	}
	spec.ID = id
	rec := &statedir.Record{Status: atoll.Status{ID: id, Provider: p.opts.Info.Name, Spec: *spec, State: atoll.StateCreating, Caps: p.opts.Info.Caps}}
	if err := p.opts.Backend.Image(ctx, rec); err != nil {
		return nil, err
	}
	leave, err := p.starts.joinQueue(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	spare, err := p.startSpare(id, p.cgroupLimits(rec))
	if err != nil {
		return nil, err
	}
	b := &bootedSupervisor{spareSupervisor: spare, kind: k}
	rec.Cgroup = spare.path
	defer func() {
		if err != nil {
			err = errors.Join(err, b.killAndRemove(), statedir.RemoveRun(b.run))
			if b.begun != nil {
				err = errors.Join(err, b.begun.Remove())
			}
		}
	}()
	if b.run, err = p.dir.MakeRun(p.opts.RunDir, id); err != nil {
		return nil, err
	}
	rec.Run = b.run
	if b.begun, err = p.dir.Begin(); err != nil {
		return nil, err
	}
	data := filepath.Join(b.begun.Path(), bootedVolume)
	if err := p.dir.Volumes().Prepare(data); err != nil {
		return nil, err
	}
	job := p.newJob(ctx, rec)
	job.Ahead, job.Dir = true, b.begun.Path()
	for i := range job.Mounts { // there is only the data volume
		job.Mounts[i].Source = data
	}
	text, err := p.encodeJob(job)
	if err != nil {
		return nil, err
	}
	reply, err := b.exchangeJob(ctx, text)
	if err == nil {
		err = reply.Err()
	}
	if err == nil {
		s.warmUp(ctx, b, id)
	}
	return b, err
}

// warmTimeout limits the command of warmUp.
const warmTimeout = 5 * time.Second

// warmUp runs a shell that ends at once, as a caller would, so that the supervisor and the engine have the pages which
// commands need. Without a shell inside, the first command of a caller is slower.
func (s *stock) warmUp(ctx context.Context, b *bootedSupervisor, id string) {
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	c := &supervisorClient{id: id, dir: b.begun.Path(), info: s.p.opts.Info}
	defer c.close()
	err := atoll.Run(ctx, c.remoteSandbox(), &atoll.Command{Args: []string{"/bin/sh", "-c", ":"}})
	if err != nil {
		s.p.log.Debug("warm up", "err", err)
	}
}

// adoptBooted makes the booted sandbox that the creation has taken the sandbox of its record. It returns errNoSupervisor if
// there is none, or if it does not work: another one may.
func (c *creation) adoptBooted(ctx context.Context) error {
	b := c.booted
	if b == nil {
		return errNoSupervisor
	}
	c.booted = nil
	if err := errors.Join(os.RemoveAll(c.rec.Run), os.Rename(b.run, c.rec.Run)); err != nil {
		c.p.log.Warn("booted sandbox", "err", errors.Join(err, b.killAndRemove(), statedir.RemoveRun(b.run)))
		return errNoSupervisor
	}
	if err := b.mark.AssignTo(c.p.dir, c.rec.Status.ID); err != nil {
		c.p.log.Warn("booted sandbox", "err", err)
	}
	err := c.p.runJob(ctx, b.supervisorProcess, c.rec)
	if k := atoll.KindOf(err); err != nil && ctx.Err() == nil && (k == atoll.ErrInternal || k == atoll.ErrUnavailable) {
		c.p.log.Warn("booted sandbox", "err", err)
		return errNoSupervisor
	}
	return err
}

// dropBooted ends the booted sandbox that the creation has taken and cannot use.
func (c *creation) dropBooted(why error) {
	c.p.log.Warn("booted sandbox", "err", why)
	c.p.stock.removeBooted(c.booted)
	c.booted = nil
}

// closeStock ends all booted sandboxes.
func (s *stock) closeStock() {
	s.stop()
	s.work.Wait()
	s.mu.Lock()
	all := s.ready
	s.ready = nil
	s.mu.Unlock()
	var done sync.WaitGroup
	for _, b := range all {
		done.Go(func() { s.removeBooted(b) })
	}
	done.Wait()
}

// Stock describes the booted sandboxes.
func (p *Provider) Stock() atoll.Stock {
	s := p.stock
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Spec, st.Max, st.Ready = *s.opts.Spec.Clone(), s.opts.Max, len(s.ready)
	for _, n := range shareStock(s.kinds, s.opts.Max, time.Now()) {
		st.Want += n
	}
	if s.booting != nil {
		st.Booting = 1
	}
	return st
}
