package inprocess

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// ID implements atoll.Sandbox.
func (b *box) ID() string { return b.id }

// Status implements atoll.Sandbox.
func (b *box) Status(ctx context.Context) (atoll.Status, error) {
	if err := ctx.Err(); err != nil {
		return atoll.Status{}, err
	}
	st, ok := b.status()
	if !ok {
		return atoll.Status{}, atoll.E("status", b.id, atoll.ErrNotFound, nil)
	}
	return st, nil
}

// Start implements atoll.Sandbox.
func (b *box) Start(ctx context.Context) error {
	if err := b.acquire(ctx, "start"); err != nil {
		return err
	}
	defer b.release()
	if st, _ := b.status(); st.State == atoll.StateRunning {
		return nil
	}
	return b.start(ctx)
}

// Stop implements atoll.Sandbox.
func (b *box) Stop(ctx context.Context, grace time.Duration) error {
	if err := b.acquire(ctx, "stop"); err != nil {
		return err
	}
	defer b.release()
	if st, _ := b.status(); st.State != atoll.StateRunning {
		return nil
	}
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	if err := b.table.Stop(ctx, grace); err != nil {
		return err
	}
	b.end(func(st *atoll.Status) { st.State = atoll.StateStopped })
	return nil
}

// Exec implements atoll.Sandbox.
func (b *box) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	caps := b.p.opts.Info.Caps
	if cmd.TTY != nil && !caps.TTY {
		return nil, atoll.Errorf("exec", b.id, atoll.ErrUnsupported, "provider %s has no terminals", b.p.opts.Info.Name)
	}
	if !caps.Users && !b.p.opts.Backend.OwnUser(cmd.User) {
		return nil, atoll.Errorf("exec", b.id, atoll.ErrUnsupported, "provider %s has no users other than its own", b.p.opts.Info.Name)
	}
	table, err := b.running("exec")
	if err != nil {
		return nil, err
	}
	return b.exec(ctx, table, "", cmd)
}

// running returns the table of a box that runs.
func (b *box) running(op string) (*process.Table, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.st.State == atoll.StateRemoved:
		return nil, atoll.E(op, b.id, atoll.ErrNotFound, nil)
	case b.st.State != atoll.StateRunning:
		return nil, atoll.E(op, b.id, atoll.ErrStopped, nil)
	}
	return b.table, nil
}

// latest returns the table of a box that runs or, along with ErrStopped, that of
// its latest run, if there was one.
func (b *box) latest(op string) (*process.Table, error) {
	table, err := b.running(op)
	if atoll.KindOf(err) == atoll.ErrStopped {
		b.mu.Lock()
		defer b.mu.Unlock()
		table = b.table
	}
	return table, err
}

// Process implements atoll.Sandbox. Those of the latest run can be found until
// the next one, after the program has ended only its main process.
func (b *box) Process(ctx context.Context, id string) (atoll.Process, error) {
	table, err := b.latest("process")
	if table == nil {
		return nil, err
	}
	p, missing := table.Get(id)
	if missing != nil {
		return nil, cmp.Or(err, missing)
	}
	return p, nil
}

// Processes implements atoll.ProcessLister: it lists those that Process finds.
func (b *box) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	table, err := b.latest("processes")
	if table == nil {
		return nil, err
	}
	list := table.List()
	if len(list) == 0 && err != nil {
		return nil, err
	}
	return list, nil
}

// Dial implements atoll.Dialer.
func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if _, err := b.running("dial"); err != nil {
		return nil, err
	}
	return dial(ctx, b.id, port)
}

// Remove implements atoll.Sandbox.
func (b *box) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	err := b.acquire(ctx, "remove")
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return b.removeLeft(opts...)
	}
	if err != nil {
		return err
	}
	defer b.release()
	return b.remove(atoll.RemoveOpts(opts...))
}

// remove is Remove of a box that is acquired.
func (b *box) remove(opts atoll.RemoveOptions) error {
	if st, _ := b.status(); st.State == atoll.StateRunning {
		b.end(func(st *atoll.Status) { st.State = atoll.StateStopped })
	}
	if err := b.sweep(); err != nil {
		return known("remove", b.id, err)
	}
	b.removing.Store(true)
	defer b.removing.Store(false)
	b.place.unmount()
	if opts.Volumes {
		err := b.p.volumes.Remove(b.place.Spec.Project, volume.DataName(b.id), nil)
		if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			return err
		}
	}
	b.disarm()
	b.p.erase(b)
	b.p.opts.Backend.Removed(b.id)
	b.vanish()
	return nil
}

// vanish lets nobody find the box any longer, by its id, its name or a handle:
// all at once, so that whom one of them says that it is gone can make it anew.
func (b *box) vanish() {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.p.leave(b)
	b.st.State, b.st.Ready, b.st.Address = atoll.StateRemoved, false, ""
	b.p.hub.Publish(b.st)
}

// removeLeft deletes the data volume that a removed box has left, if that is
// wanted and no other box has it now.
func (b *box) removeLeft(opts ...atoll.RemoveOption) error {
	if !atoll.RemoveOpts(opts...).Volumes {
		return nil
	}
	err := b.p.removeVolume(b.place.Spec.Project, volume.DataName(b.id), "")
	if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrConflict {
		return nil
	}
	return err
}

var (
	_ atoll.Sandbox       = (*box)(nil)
	_ atoll.Filer         = (*box)(nil)
	_ atoll.Dialer        = (*box)(nil)
	_ atoll.ProcessLister = (*box)(nil)
)
