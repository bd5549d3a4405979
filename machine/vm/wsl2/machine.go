package wsl2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/internal/child"
)

// machine implements vm.Machine.
type machine struct {
	d    *Driver
	h    vm.Hardware
	root distro

	mu      sync.Mutex
	begun   bool
	lock    *fsutil.Lock // on its Home
	wsl     wsl
	p       *child.Process // nil until it runs
	console io.WriteCloser
	loaded  bool // the distribution is there, or a part of it
	killed  bool // rather than ended
	gone    bool

	stream *stdio
	end    context.CancelFunc // of the greeting
	up     chan struct{}      // closed when there is a session, or never will be
	talk   *mux.Session       // nil if there will be none; behind up
	mute   error              // why
}

// cleanTime is how long WSL may take to clean up when nobody says how long.
const cleanTime = time.Minute

// Start implements vm.Machine.
func (m *machine) Start(ctx context.Context) error {
	m.mu.Lock()
	begun := m.begun
	m.begun = true
	m.mu.Unlock()
	if begun {
		return atoll.Errorf("start", m.h.ID, atoll.ErrConflict, "a machine starts once: make another one")
	}
	if err := m.launch(ctx); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		err = errors.Join(err, m.remove())
		m.lock.Release()
		return atoll.E("start", m.h.ID, atoll.KindOf(err), err)
	}
	return nil
}

func (m *machine) launch(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.wsl, err = m.d.program(); err != nil {
		return err
	}
	if m.root.home {
		if m.lock, err = m.root.take(); err != nil {
			return err
		}
	}
	m.loaded = true
	if err := m.root.make(ctx, m.wsl, m.h.Root, m.d.opts.Guest[0]); err != nil {
		return err
	}
	if m.console, err = child.Console(m.h.Console); err != nil {
		return err
	}
	cmd := m.wsl.command(context.Background(), m.root.exec(m.d.opts.Guest...)...)
	cmd.Stderr = m.console
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if m.p, err = child.Start(cmd); err != nil {
		return err
	}
	m.stream = &stdio{out, in}
	greeting, end := context.WithCancel(context.Background())
	m.end, m.up = end, make(chan struct{})
	go m.greet(greeting)
	return nil
}

// greet waits for the guest to answer.
func (m *machine) greet(ctx context.Context) {
	defer close(m.up)
	m.talk, m.mute = mux.Host(ctx, m.stream)
}

// stdio is a stream to a program. What it prints can be read until it ends: on Windows
// nothing else ends a read.
type stdio struct {
	io.Reader
	io.WriteCloser
}

// speaks reports whether the guest has answered.
func (m *machine) speaks() bool {
	select {
	case <-m.up: // which is nil before it runs
		return m.talk != nil
	default:
		return false
	}
}

// remove frees all that the machine holds.
func (m *machine) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
	defer cancel()
	var err error
	began := m.speaks()
	if m.loaded && began {
		err = m.root.end(ctx, m.wsl)
	}
	if m.p != nil {
		m.end()
		m.p.Kill()
		<-m.up
		if m.talk != nil {
			_ = m.talk.Close() // the stream has ended
		}
	}
	if m.loaded && !began { // not before: it may have been about to start the distribution
		err = m.root.end(ctx, m.wsl)
	}
	if m.console != nil {
		_ = m.console.Close()
	}
	return err
}

// running returns the process that the guest speaks through. Kinds: ErrStopped.
func (m *machine) running(op string) (*child.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.p == nil {
		return nil, atoll.Errorf(op, m.h.ID, atoll.ErrStopped, "the machine is not started")
	}
	return m.p, nil
}

// Dial implements vm.Machine.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	p, err := m.running("dial")
	if err != nil {
		return nil, err
	}
	select {
	case <-m.up:
	case <-p.Done():
	case <-ctx.Done():
		return nil, atoll.E("dial", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	ended := func() error {
		return atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, "the machine has ended")
	}
	select {
	case <-p.Done():
		return nil, ended()
	default:
	}
	if m.talk == nil {
		return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, "the guest does not speak: %w", m.mute)
	}
	conn, err := m.talk.Open()
	if err != nil {
		return nil, ended()
	}
	if err := mux.Connect(ctx, conn, port); err != nil {
		conn.Close()
		switch {
		case ctx.Err() != nil:
			return nil, atoll.E("dial", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
		case m.talk.Closed() || mux.IsEnd(err):
			return nil, ended()
		case errors.Is(err, mux.ErrRefused):
			return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, "nothing listens on port %d of the guest", port)
		}
		return nil, atoll.E("dial", m.h.ID, atoll.ErrInternal, err)
	}
	return conn, nil
}

// Stop implements vm.Machine: the guest is asked on its port. Where nothing listens there
// its stdin ends, and it cannot be dialled any more whether it ends or not.
func (m *machine) Stop(ctx context.Context) error {
	p, err := m.running("stop")
	if err != nil {
		return err
	}
	if err := vm.PowerOff(ctx, m); err != nil && ctx.Err() == nil {
		m.end()
		_ = m.stream.Close() // it may have ended
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return atoll.E("stop", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
}

// Kill implements vm.Machine. The distribution goes, but for one that has a Home. When WSL does not do as
// it is told the error says so, and it can be tried again.
func (m *machine) Kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.p == nil || m.gone {
		return nil
	}
	select {
	case <-m.p.Done():
	default:
		m.killed = true
	}
	if err := m.remove(); err != nil {
		return atoll.E("kill", m.h.ID, atoll.KindOf(err), err)
	}
	m.lock.Release()
	m.gone = true
	return nil
}

// Wait implements vm.Machine.
func (m *machine) Wait(ctx context.Context) error {
	p, err := m.running("wait")
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return atoll.E("wait", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	m.mu.Lock() // Kill says whether it was told to
	defer m.mu.Unlock()
	if m.killed || p.Err() == nil {
		return nil
	}
	return atoll.E("wait", m.h.ID, atoll.ErrInternal, fmt.Errorf("the guest: %w", p.Err()))
}

// Pause implements vm.Machine.
func (m *machine) Pause(context.Context) error {
	return atoll.Errorf("pause", m.h.ID, atoll.ErrUnsupported, "wsl2 does not pause machines")
}

// Resume implements vm.Machine.
func (m *machine) Resume(context.Context) error {
	return atoll.Errorf("resume", m.h.ID, atoll.ErrUnsupported, "wsl2 does not pause machines")
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.h.ID, atoll.ErrUnsupported, "wsl2 has no snapshots")
}

var _ vm.Machine = (*machine)(nil)
