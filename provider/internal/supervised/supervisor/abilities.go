package supervisor

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Dial connects to a TCP port inside.
func (b *Box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", b.ID(), atoll.ErrInvalid, "port %d: must be within 1..65535", port)
	}
	return b.engine.Dial(ctx, port)
}

// Usage measures what the sandbox uses.
func (b *Box) Usage(ctx context.Context) (atoll.Usage, error) {
	if b.Ended() {
		return atoll.Usage{}, atoll.E("usage", b.ID(), atoll.ErrStopped, nil)
	}
	u, err := b.engine.Usage(ctx)
	if err != nil {
		return atoll.Usage{}, atoll.E("usage", b.ID(), atoll.KindOf(err), err)
	}
	if memory, cpu, ok := b.Group.Usage(); ok { // what it costs the host, engine and keeper included
		u.Memory, u.CPU = atoll.Bytes(memory), atoll.Duration(cpu)
	}
	return u, nil
}

// Snapshot has the engine write what is needed to go on from here. The provider
// adds what makes it complete; if it does not wait for that, nothing is left of it.
func (b *Box) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	if b.Ended() {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), atoll.ErrStopped, nil)
	}
	snap := atoll.Snapshot{ID: atoll.NewID(), Sandbox: b.ID(), Created: time.Now()}
	dir := b.dir.NewSnapshot(b.ID(), snap.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), bootKind(err), err)
	}
	err := b.engine.Snapshot(ctx, dir)
	if err == nil && ctx.Err() == nil {
		return snap, nil
	}
	if dropErr := os.RemoveAll(dir); dropErr != nil { // a sweep tries again
		b.Log.Error("snapshot: undo", "err", dropErr)
	}
	if err == nil {
		return atoll.Snapshot{}, ctx.Err()
	}
	return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), bootKind(err), err)
}

var (
	_ atoll.Sandbox       = (*Box)(nil)
	_ atoll.Dialer        = (*Box)(nil)
	_ atoll.Extender      = (*Box)(nil)
	_ atoll.Filer         = (*Box)(nil)
	_ atoll.Meter         = (*Box)(nil)
	_ atoll.Pauser        = (*Box)(nil)
	_ atoll.ProcessLister = (*Box)(nil)
	_ atoll.Snapshotter   = (*Box)(nil)
)
