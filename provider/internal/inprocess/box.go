package inprocess

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// A box is one sandbox and at the same time its handle.
type box struct {
	p     *Provider
	id    string
	place Place
	busy  chan struct{} // capacity 1: full while an operation changes the state

	// For the one who has acquired the box.
	lock  *fsutil.Lock // held as long as this program answers for the sandbox
	fresh bool         // the data volume was made for this box
	named []string     // volumes that its mounts name and that were not there

	dirty    atomic.Bool // processes were started since the last sweep
	removing atomic.Bool // the operation that has acquired the box removes it

	mu      sync.Mutex
	st      atoll.Status
	table   *process.Table // of the present or latest run; nil before the first
	made    bool           // Create has succeeded
	expiry  *time.Timer    // Spec.TTL
	lingers *time.Timer    // Spec.AutoRemove
}

// newBox returns a box that is acquired.
func newBox(p *Provider, spec *atoll.Spec) *box {
	info := p.opts.Info
	b := &box{
		p:     p,
		id:    spec.ID,
		place: newPlace(spec, p.volumes),
		busy:  make(chan struct{}, 1),
		st: atoll.Status{
			ID: spec.ID, Provider: info.Name, Spec: *spec, State: atoll.StateCreating,
			Image: cmp.Or(spec.Image, p.opts.Image), Created: time.Now(), Caps: info.Caps,
		},
	}
	b.busy <- struct{}{}
	return b
}

// make brings a new box to life. When it fails, nothing is left.
func (b *box) make(ctx context.Context) (err error) {
	defer b.release()
	if err = b.p.step("lock"); err == nil {
		b.lock, err = b.p.lock(b.id)
	}
	if err != nil {
		return known("create", b.id, err)
	}
	if err := b.p.free(b.id); err != nil {
		b.lock.Release()
		return known("create", b.id, err)
	}
	b.fresh = !b.p.volumes.Has(b.place.Spec.Project, volume.DataName(b.id))
	if err = b.change(func(*atoll.Status) {}); err == nil { // from here on what a crash leaves can be found, and volumes are in use
		b.named = b.place.missing(b.p.volumes)
		err = b.place.prepare(b.p.volumes, b.p.step)
	}
	if err == nil {
		err = b.birth(ctx)
	}
	if err != nil {
		b.undo()
	}
	return known("create", b.id, err)
}

// undo removes what a Create that failed has made. Its error counts, not those
// of undo.
func (b *box) undo() {
	_ = b.sweep()
	b.place.unmount()
	if b.fresh {
		_ = b.p.volumes.Remove(b.place.Spec.Project, volume.DataName(b.id), nil)
	}
	for _, vol := range b.named {
		_ = b.p.removeVolume(b.place.Spec.Project, vol, b.id) // unless another sandbox uses it by now
	}
	b.p.erase(b)
}

// birth starts the box, if it is to be, and makes it visible.
func (b *box) birth(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ttl := b.place.Spec.TTL; ttl > 0 {
		b.st.Expires = b.st.Created.Add(time.Duration(ttl))
	}
	if !b.place.Spec.NoStart {
		if err := b.start(ctx); err != nil {
			return err
		}
	} else if err := b.change(func(st *atoll.Status) { st.State = atoll.StateCreated }); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = true
	b.p.hub.Publish(b.st)
	b.arm()
	return nil
}

// arm sets the timers; b.mu is held.
func (b *box) arm() {
	if !b.st.Expires.IsZero() && b.expiry == nil {
		b.expiry = b.p.after(time.Until(b.st.Expires), func() { b.drop("its time was over", b.expired) })
	}
	if b.lingers != nil {
		b.lingers.Stop()
	}
	if b.place.Spec.AutoRemove && !b.st.Stopped.IsZero() { // however it ended
		b.lingers = b.p.after(time.Until(b.st.Stopped.Add(atoll.AutoRemoveLinger)), func() { b.drop("its main process ended", b.lingered) })
	}
}

// Extend implements atoll.Extender.
func (b *box) Extend(ctx context.Context, ttl atoll.Duration) error {
	if err := b.acquire(ctx, "extend"); err != nil {
		return err
	}
	defer b.release()
	b.mu.Lock()
	st, err := b.st.Extended(ttl, time.Now())
	if err == nil && b.expiry != nil {
		b.expiry.Stop()
		b.expiry = nil
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.change(func(now *atoll.Status) { now.Expires = st.Expires })
}

func (b *box) disarm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range []*time.Timer{b.expiry, b.lingers} {
		if t != nil {
			t.Stop()
		}
	}
}

// expired reports whether the box's time is over.
func (b *box) expired() bool {
	st, ok := b.status()
	return ok && !st.Expires.IsZero() && !time.Now().Before(st.Expires)
}

// lingered reports whether the box was to go with its main process, and that has
// ended a while ago.
func (b *box) lingered() bool {
	st, ok := b.status()
	return ok && st.State != atoll.StateRunning && !st.Stopped.IsZero() && !time.Now().Before(st.Stopped.Add(atoll.AutoRemoveLinger))
}

// drop removes the box because its time has come, if that is still so when no
// other operation is in progress.
func (b *box) drop(why string, due func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.acquire(ctx, "remove"); err != nil {
		return // it is gone, or the next to open the provider will see to it
	}
	defer b.release()
	if !due() {
		return
	}
	if err := b.remove(atoll.RemoveOptions{Volumes: true}); err != nil {
		b.p.log.Error("remove", "sandbox", b.id, "reason", why, "err", err)
	}
}

// acquire waits for the operation in progress to end. It fails when ctx ends
// first, when the box has been removed and when the provider is closed.
func (b *box) acquire(ctx context.Context, op string) error {
	select {
	case b.busy <- struct{}{}:
	default:
		select {
		case b.busy <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var err error
	if !b.visible() {
		err = atoll.E(op, b.id, atoll.ErrNotFound, nil)
	} else if b.p.isClosed() {
		err = atoll.Errorf(op, b.id, atoll.ErrUnavailable, "the provider is closed")
	}
	if err != nil {
		b.release()
	}
	return err
}

func (b *box) release() { <-b.busy }

// visible reports whether the box was made and not yet removed.
func (b *box) visible() bool {
	_, ok := b.status()
	return ok
}

func (b *box) status() (st atoll.Status, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.made || b.st.State == atoll.StateRemoved {
		return atoll.Status{}, false
	}
	return b.st.Clone(), true
}

// change gives the box another status, which is recorded and published. The
// box must be acquired; f is called with b.mu held.
func (b *box) change(f func(*atoll.Status)) error {
	b.mu.Lock()
	st := b.st.Clone()
	f(&st)
	st.Ready = st.State == atoll.StateRunning
	st.Address = ""
	if st.Ready {
		st.Address = b.p.opts.Address
	}
	b.st = st
	if b.made {
		b.p.hub.Publish(st)
		b.arm()
	}
	b.mu.Unlock()
	return b.p.save(record{st, b.fresh})
}

// settle is change where the new status is a fact, recorded or not.
func (b *box) settle(f func(*atoll.Status)) {
	if err := b.change(f); err != nil {
		b.p.log.Warn("record", "sandbox", b.id, "err", err)
	}
}

// start runs the box, which must be acquired. When it fails, the box is what it
// was, with the processes of its latest run.
func (b *box) start(ctx context.Context) error {
	spec, table := b.place.Spec, process.NewTable()
	var main atoll.Process
	if len(spec.Cmd) > 0 {
		var err error
		cmd := &atoll.Command{Args: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin}
		if main, err = b.exec(ctx, table, atoll.MainProcess, cmd); err != nil {
			return err
		}
	}
	var before atoll.Status
	last := b.table
	err := b.change(func(st *atoll.Status) {
		before, b.table = st.Clone(), table
		st.State, st.Reason, st.Exit = atoll.StateRunning, "", nil
		st.Started, st.Stopped = time.Now(), time.Time{}
	})
	if err != nil {
		b.halt(table)
		b.settle(func(st *atoll.Status) { *st, b.table = before, last })
		return err
	}
	b.dropMain()
	if main != nil {
		b.p.spawn(func() { b.follow(table, main) })
	}
	return nil
}

// follow waits for the end of the main process, which ends the box.
func (b *box) follow(table *process.Table, main atoll.Process) {
	exit, err := main.Wait(context.Background())
	if err != nil {
		return // the table was closed by another operation
	}
	if b.acquire(context.Background(), "stop") != nil {
		return
	}
	defer b.release()
	if !b.runs(table) {
		return
	}
	b.end(func(st *atoll.Status) { st.State, st.Reason, st.Exit = exit.State(), exit.String(), &exit })
}

// runs reports whether the box is in the run that table belongs to.
func (b *box) runs(table *process.Table) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.st.State == atoll.StateRunning && b.table == table
}

// end ends every process of a running box, which must be acquired, and gives
// it the status that f makes.
func (b *box) end(f func(*atoll.Status)) {
	b.halt(b.table)
	b.saveMain()
	exit := mainExit(b.table)
	b.settle(func(st *atoll.Status) {
		st.Stopped, st.Exit = time.Now(), exit
		f(st)
	})
}

// halt ends every process of a run, and what they left.
func (b *box) halt(table *process.Table) {
	_ = table.Close() // never fails
	if err := b.sweep(); err != nil {
		b.p.log.Warn("sweep", "sandbox", b.id, "err", err)
	}
}

// sweep ends processes that no table knows.
func (b *box) sweep() error {
	if !b.dirty.Swap(false) {
		return nil
	}
	err := b.p.opts.Backend.Sweep(b.id)
	if err != nil {
		b.dirty.Store(true)
	}
	return err
}

// mainExit is the exit of the main process, if there was one.
func mainExit(table *process.Table) *atoll.Exit {
	for _, st := range table.List() {
		if st.ID == atoll.MainProcess {
			return st.Exit
		}
	}
	return nil
}

// exec starts a process in a run of the box.
func (b *box) exec(ctx context.Context, table *process.Table, id string, cmd *atoll.Command) (atoll.Process, error) {
	c := *cmd
	if len(c.Args) == 0 {
		c.Args = []string{b.p.opts.Backend.Shell(&b.place, cmd)}
	}
	b.dirty.Store(true)
	p, err := table.StartHeld(ctx, id, &c, b.hold(id), func(io process.Stdio) (process.Handle, error) {
		if id == atoll.MainProcess {
			if err := b.p.step("main process"); err != nil {
				return nil, err
			}
		}
		return b.p.opts.Backend.Start(ctx, &b.place, &c, io)
	})
	return p, known("exec", b.id, err)
}

// hold is how long a process's output is kept for its first reader: that of a
// main process which is all that its sandbox is for comes after it was started.
func (b *box) hold(id string) time.Duration {
	if id == atoll.MainProcess && b.place.Spec.AutoRemove {
		return atoll.AutoRemoveLinger
	}
	return 0
}

// close ends the box for this program.
func (b *box) close() {
	b.busy <- struct{}{}
	defer b.release()
	defer b.disarm()
	st, ok := b.status()
	if !ok {
		return
	}
	if st.State == atoll.StateRunning {
		b.end(func(st *atoll.Status) {
			st.State, st.Reason = atoll.StateStopped, "the program that ran it ended"
		})
	}
	b.lock.Release()
}

// known gives an error that has no op yet one, and its kind.
func known(op, id string, err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *atoll.Error:
		if e.ID == "" {
			return &atoll.Error{Op: e.Op, ID: id, Kind: e.Kind, Err: e.Err}
		}
		return err
	}
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	kind := atoll.KindOf(err)
	if fsutil.IsFull(err) {
		kind = atoll.ErrExhausted
	}
	return atoll.E(op, id, kind, err)
}
