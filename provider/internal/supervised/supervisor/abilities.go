package supervisor

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Dial connects to a TCP port inside.
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", s.ID(), atoll.ErrInvalid, "port %d: must be within 1..65535", port)
	}
	return s.engine.Dial(ctx, port)
}

// Usage measures the resources that the sandbox uses.
func (s *Sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	if s.Ended() {
		return atoll.Usage{}, atoll.E("usage", s.ID(), atoll.ErrStopped, nil)
	}
	u, err := s.engine.Usage(ctx)
	if err != nil {
		return atoll.Usage{}, atoll.E("usage", s.ID(), atoll.KindOf(err), err)
	}
	if memory, cpu, ok := s.Group.Usage(); ok { // the whole cost for the host, engine and supervisor included
		u.Memory, u.CPU = atoll.Bytes(memory), atoll.Duration(cpu)
	}
	return u, nil
}

// Snapshot has the engine write a state to continue from. The provider completes it; if the
// provider stops waiting, nothing is left of the snapshot.
func (s *Sandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	if s.Ended() {
		return atoll.Snapshot{}, atoll.E("snapshot", s.ID(), atoll.ErrStopped, nil)
	}
	snap := atoll.Snapshot{ID: atoll.NewID(), Sandbox: s.ID(), Created: time.Now()}
	dir := s.dir.NewSnapshot(s.ID(), snap.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return atoll.Snapshot{}, atoll.E("snapshot", s.ID(), bootKind(err), err)
	}
	err := s.engine.Snapshot(ctx, dir, atoll.ApplySnapshotOptions(opts...))
	if err == nil && ctx.Err() == nil {
		return snap, nil
	}
	if dropErr := os.RemoveAll(dir); dropErr != nil { // a sweep tries again
		s.Log.Error("snapshot: undo", "err", dropErr)
	}
	if err == nil {
		return atoll.Snapshot{}, ctx.Err()
	}
	return atoll.Snapshot{}, atoll.E("snapshot", s.ID(), bootKind(err), err)
}

var (
	_ atoll.Sandbox        = (*Sandbox)(nil)
	_ atoll.Dialer         = (*Sandbox)(nil)
	_ atoll.Extender       = (*Sandbox)(nil)
	_ atoll.Filer          = (*Sandbox)(nil)
	_ atoll.Meter          = (*Sandbox)(nil)
	_ atoll.Pauser         = (*Sandbox)(nil)
	_ atoll.NetworkLogger  = (*Sandbox)(nil)
	_ atoll.NetworkUpdater = (*Sandbox)(nil)
	_ atoll.ProcessLister  = (*Sandbox)(nil)
	_ atoll.Refuser        = (*Sandbox)(nil)
	_ atoll.Snapshotter    = (*Sandbox)(nil)
)
