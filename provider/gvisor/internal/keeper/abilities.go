//go:build linux

package keeper

import (
	"context"
	"net"
	"os"
	"time"

	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/seed46cd37a8/atoll"
)

// Dial connects to a TCP port inside, by way of the guest: gVisor's own port
// forwarding drops what is still on its way when one side closes for writing.
func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", b.ID(), atoll.ErrInvalid, "port %d: must be within 1..65535", port)
	}
	g, err := b.files.connect(ctx, "dial")
	if err != nil {
		return nil, err
	}
	return atoll.Dial(ctx, g, port)
}

// Usage measures what the sandbox uses.
func (b *box) Usage(context.Context) (atoll.Usage, error) {
	if b.ended() {
		return atoll.Usage{}, atoll.E("usage", b.ID(), atoll.ErrStopped, nil)
	}
	u, err := b.sentry.usage()
	if err != nil {
		return atoll.Usage{}, atoll.E("usage", b.ID(), atoll.ErrInternal, err)
	}
	if memory, cpu, ok := b.cgroup.Usage(); ok { // what it costs the host, sentry and keeper included
		u.Memory, u.CPU = atoll.Bytes(memory), atoll.Duration(cpu)
	}
	return u, nil
}

func (s *sentry) usage() (atoll.Usage, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	event, err := s.c.Event()
	if err != nil {
		return atoll.Usage{}, err
	}
	data := event.Event.Data
	return atoll.Usage{
		Memory:    atoll.Bytes(data.Memory.Usage.Usage),
		CPU:       atoll.Duration(data.CPU.Usage.Total),
		Processes: int(data.Pids.Current),
	}, nil
}

// Snapshot writes a checkpoint of the running sandbox, which runs on. The
// provider adds what makes it complete; if it does not wait for that, nothing is
// left of it.
func (b *box) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	if b.ended() {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), atoll.ErrStopped, nil)
	}
	snap := atoll.Snapshot{ID: atoll.NewID(), Sandbox: b.ID(), Created: time.Now()}
	// The guest's program is an open file of this process, which cannot be saved.
	if err := b.files.dismiss(ctx); err != nil {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), atoll.KindOf(err), err)
	}
	dir := b.dir.NewSnapshot(b.ID(), snap.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), bootKind(err), err)
	}
	err := b.sentry.checkpoint(dir)
	if err == nil && ctx.Err() == nil {
		return snap, nil
	}
	if dropErr := os.RemoveAll(dir); dropErr != nil { // a sweep tries again
		b.log.Error("snapshot: undo", "err", dropErr)
	}
	if err == nil {
		return atoll.Snapshot{}, ctx.Err()
	}
	return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), bootKind(err), err)
}

func (s *sentry) checkpoint(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{Resume: true, ExcludeCommittedZeroPages: true})
}
