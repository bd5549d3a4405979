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
	driver   *Driver
	hardware vm.Hardware
	root     distro

	mu       sync.Mutex
	started  bool
	lock     *fsutil.Lock // on its Home
	wsl      wsl
	process  *child.Process // nil until it runs
	console  io.WriteCloser
	loaded   bool // the distribution exists, maybe in part
	killed   bool // Kill ended it
	released bool

	stream        *stdio
	cancelSession context.CancelFunc // of openSession
	sessionReady  chan struct{}      // closed when there is a session, or never will be
	session       *mux.Session       // nil if there will be none; read it after sessionReady
	sessionErr    error              // why there is none
}

// cleanupTimeout bounds the cleanup by WSL in calls without a context.
const cleanupTimeout = time.Minute

// Start implements vm.Machine.
func (m *machine) Start(ctx context.Context) error {
	m.mu.Lock()
	begun := m.started
	m.started = true
	m.mu.Unlock()
	if begun {
		return atoll.Errorf("start", m.hardware.ID, atoll.ErrConflict, "a machine starts once: make another one")
	}
	if err := m.launchGuest(ctx); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		err = errors.Join(err, m.releaseResources())
		m.lock.Release()
		return atoll.E("start", m.hardware.ID, atoll.KindOf(err), err)
	}
	return nil
}

// launchGuest prepares the distribution, and starts the guest in it.
func (m *machine) launchGuest(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.wsl, err = m.driver.findWSL(); err != nil {
		return err
	}
	if m.root.home {
		if m.lock, err = m.root.acquireHome(); err != nil {
			return err
		}
	}
	m.loaded = true
	if err := m.root.prepareDistro(ctx, m.wsl, m.hardware.Root, m.driver.opts.Guest[0]); err != nil {
		return err
	}
	if m.console, err = child.Console(m.hardware.Console); err != nil {
		return err
	}
	cmd := m.wsl.buildCommand(context.Background(), m.root.execArgs(m.driver.opts.Guest...)...)
	cmd.Stderr = m.console
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if m.process, err = child.Start(cmd); err != nil {
		return err
	}
	m.stream = &stdio{out, in}
	greeting, end := context.WithCancel(context.Background())
	m.cancelSession, m.sessionReady = end, make(chan struct{})
	go m.openSession(greeting)
	return nil
}

// openSession waits for the guest to answer.
func (m *machine) openSession(ctx context.Context) {
	defer close(m.sessionReady)
	m.session, m.sessionErr = mux.Host(ctx, m.stream)
}

// stdio is a stream to the stdin and stdout of a program. Its Reader returns data until the program
// ends: on Windows nothing else ends a read.
type stdio struct {
	io.Reader
	io.WriteCloser
}

// hasSession reports whether the guest has answered.
func (m *machine) hasSession() bool {
	select {
	case <-m.sessionReady: // nil before the guest runs
		return m.session != nil
	default:
		return false
	}
}

// releaseResources frees all that the machine holds.
func (m *machine) releaseResources() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var err error
	began := m.hasSession()
	if m.loaded && began {
		err = m.root.endDistro(ctx, m.wsl)
	}
	if m.process != nil {
		m.cancelSession()
		m.process.Kill()
		<-m.sessionReady
		if m.session != nil {
			_ = m.session.Close() // the stream has ended
		}
	}
	if m.loaded && !began { // only now, since the process may have been about to start the distribution
		err = m.root.endDistro(ctx, m.wsl)
	}
	if m.console != nil {
		_ = m.console.Close()
	}
	return err
}

// runningProcess returns the process that connects to the guest. Kinds: ErrStopped.
func (m *machine) runningProcess(op string) (*child.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return nil, atoll.Errorf(op, m.hardware.ID, atoll.ErrStopped, "the machine is not started")
	}
	return m.process, nil
}

// Dial implements vm.Machine.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	p, err := m.runningProcess("dial")
	if err != nil {
		return nil, err
	}
	select {
	case <-m.sessionReady:
	case <-p.Done():
	case <-ctx.Done():
		return nil, atoll.E("dial", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	ended := func() error {
		return atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, "the machine has ended")
	}
	select {
	case <-p.Done():
		return nil, ended()
	default:
	}
	if m.session == nil {
		return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, "the guest does not answer: %w", m.sessionErr)
	}
	conn, err := m.session.Open()
	if err != nil {
		return nil, ended()
	}
	if err := mux.Connect(ctx, conn, port); err != nil {
		conn.Close()
		switch {
		case ctx.Err() != nil:
			return nil, atoll.E("dial", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
		case m.session.Closed() || mux.IsEnd(err):
			return nil, ended()
		case errors.Is(err, mux.ErrRefused):
			return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, "nothing listens on port %d of the guest", port)
		}
		return nil, atoll.E("dial", m.hardware.ID, atoll.ErrInternal, err)
	}
	return conn, nil
}

// Stop implements vm.Machine: it asks the guest on its power-off port. If nothing listens there,
// Stop closes the guest's stdin; from then on the guest cannot be dialled, whether it ends or not.
func (m *machine) Stop(ctx context.Context) error {
	p, err := m.runningProcess("stop")
	if err != nil {
		return err
	}
	if err := vm.PowerOff(ctx, m); err != nil && ctx.Err() == nil {
		m.cancelSession()
		_ = m.stream.Close() // it may have ended
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return atoll.E("stop", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
}

// Kill implements vm.Machine. It removes the distribution unless that has a Home. If WSL fails,
// Kill returns its error, and can be called again.
func (m *machine) Kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil || m.released {
		return nil
	}
	select {
	case <-m.process.Done():
	default:
		m.killed = true
	}
	if err := m.releaseResources(); err != nil {
		return atoll.E("kill", m.hardware.ID, atoll.KindOf(err), err)
	}
	m.lock.Release()
	m.released = true
	return nil
}

// Wait implements vm.Machine.
func (m *machine) Wait(ctx context.Context) error {
	p, err := m.runningProcess("wait")
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return atoll.E("wait", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	m.mu.Lock() // Kill sets killed under mu
	defer m.mu.Unlock()
	if m.killed || p.Err() == nil {
		return nil
	}
	return atoll.E("wait", m.hardware.ID, atoll.ErrInternal, fmt.Errorf("the guest: %w", p.Err()))
}

// Pause implements vm.Machine.
func (m *machine) Pause(context.Context) error {
	return atoll.Errorf("pause", m.hardware.ID, atoll.ErrUnsupported, "wsl2 does not pause machines")
}

// Resume implements vm.Machine.
func (m *machine) Resume(context.Context) error {
	return atoll.Errorf("resume", m.hardware.ID, atoll.ErrUnsupported, "wsl2 does not pause machines")
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.hardware.ID, atoll.ErrUnsupported, "wsl2 has no snapshots")
}

var _ vm.Machine = (*machine)(nil)
