package docker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// sweepEvery is how often what is due is looked for, if nothing is known to be
// due before that.
const sweepEvery = time.Minute

// A sweeper removes the sandboxes whose time is over, and what is left of those
// that were never finished. Any provider of the same engine does it.
type sweeper struct {
	p    *Provider
	wake chan struct{}
	quit context.CancelFunc
	done chan struct{}

	waits   sync.WaitGroup
	mu      sync.Mutex
	awaited map[string]bool // sandboxes whose end is waited for
}

func newSweeper(p *Provider) *sweeper {
	ctx, quit := context.WithCancel(context.Background())
	s := &sweeper{p: p, wake: make(chan struct{}, 1), quit: quit, done: make(chan struct{}), awaited: map[string]bool{}}
	go func() {
		defer close(s.done)
		s.run(ctx)
	}()
	return s
}

// rouse makes the sweeper look when the next sandbox is due.
func (s *sweeper) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sweeper) close() {
	s.quit()
	<-s.done
	s.waits.Wait()
}

func (s *sweeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		due, err := s.sweep(ctx)
		if err != nil && ctx.Err() == nil && atoll.KindOf(err) != atoll.ErrUnavailable { // where no engine is, nothing is due
			s.p.log.Warn("sweep", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-time.After(time.Until(due)):
		}
	}
}

// sweep looks at every sandbox and returns when to look again.
func (s *sweeper) sweep(ctx context.Context) (due time.Time, err error) {
	due = time.Now().Add(sweepEvery)
	list, err := s.p.records(ctx, "list", atoll.Filter{})
	if err != nil {
		return due, err
	}
	for _, r := range list {
		if r.ends() && (r.State == atoll.StateRunning || r.State == atoll.StatePaused) {
			s.await(ctx, r.ID)
		}
		t := r.due()
		switch {
		case t.IsZero():
		case time.Now().Before(t):
			due = sooner(due, t)
		default:
			if err := s.remove(ctx, r.ID); err != nil {
				s.p.log.Warn("sweep", "sandbox", r.ID, "err", err)
				due = sooner(due, time.Now().Add(time.Second))
			}
		}
	}
	return due, s.strays(ctx, list)
}

// strays removes the marks of sandboxes that are no more.
func (s *sweeper) strays(ctx context.Context, list []*record) error {
	all, err := s.p.marks(ctx, "")
	if err != nil {
		return err
	}
	for _, m := range all {
		if slices.ContainsFunc(list, func(r *record) bool { return r.ID == m.sandbox }) {
			continue
		}
		lock, err := s.p.lock(ctx, "remove", m.sandbox)
		if err != nil {
			return err
		}
		_, err = s.p.inspect(ctx, "remove", m.sandbox)
		if atoll.KindOf(err) == atoll.ErrNotFound { // nor was it made meanwhile
			err = s.p.removeMarks(ctx, []mark{m})
		}
		lock.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// await rouses the sweeper when the sandbox has ended.
func (s *sweeper) await(ctx context.Context, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaited[id] {
		return
	}
	s.awaited[id] = true
	s.waits.Go(func() {
		ended := s.p.engine.ContainerWait(ctx, s.p.names.container(id), client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		var err error
		select {
		case <-ended.Result:
		case err = <-ended.Error:
		}
		s.mu.Lock()
		delete(s.awaited, id)
		s.mu.Unlock()
		if err == nil { // else it is waited for again with the next sweep
			s.rouse()
		}
	})
}

func sooner(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// due is when the sandbox's time is over; zero means that it is not known.
func (r *record) due() time.Time {
	due := r.Expires
	if r.Stopped.IsZero() {
		return due
	}
	if r.Spec.IdleRemove && r.idle {
		return r.Stopped
	}
	if r.Spec.AutoRemove {
		if t := r.Stopped.Add(atoll.AutoRemoveLinger); due.IsZero() || t.Before(due) {
			due = t
		}
	}
	return due
}

// ends reports whether the sandbox goes when it has come to its end.
func (r *record) ends() bool {
	return r.Spec.AutoRemove || r.Spec.IdleRemove && r.State == atoll.StateRunning
}

// remove removes a sandbox with its data volume, if it is still due: it may have
// been started again.
func (s *sweeper) remove(ctx context.Context, id string) error {
	sb := &sandbox{s.p, id}
	lock, err := s.p.lock(ctx, "remove", id)
	if err != nil {
		return err
	}
	defer lock.Release()
	r, err := s.p.inspect(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.due(); t.IsZero() || time.Now().Before(t) {
		return nil
	}
	return sb.remove(ctx, atoll.RemoveOptions{Volumes: true})
}

// Ping returns nil when an engine answers. Kinds: ErrUnavailable.
func (p *Provider) Ping(ctx context.Context) error {
	return p.failed(ctx, "ping", "", p.connected(ctx))
}

// connected reports whether an engine answers.
func (p *Provider) connected(ctx context.Context) error {
	_, err := p.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	return err
}
