//go:build linux

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/internal/child"
)

// A machine is a process of QEMU, which dies with this one.
type machine struct {
	driver *Driver
	h      vm.Hardware

	helpers []*child.Process // the daemons of shares
	qemu    *child.Process
	monitor *monitor
	console int64 // where what it prints begins

	greeted chan struct{} // closed when the guest has answered, or will not
	line    *mux.Session  // nil if it has not

	mu     sync.Mutex
	asked  bool      // it is to end
	reason string    // why it does, as QEMU says
	full   time.Time // when there was last no room for a disk
	stalls int       // how often it has stood still for that

	rule   sync.Mutex // held by who lets it stand still or go on
	paused bool       // behind rule: somebody wants it to stand still
	stuck  chan struct{}

	ended  chan struct{} // closed when QEMU has, and reason and failed are known
	failed error
	killed sync.Once
	work   sync.WaitGroup
}

// New implements vm.Driver.
func (d *Driver) New(h *vm.Hardware) (vm.Machine, error) {
	if err := h.Validate(d.Caps()); err != nil {
		return nil, err
	}
	if h.Kernel == "" {
		return nil, atoll.Errorf("machine", h.ID, atoll.ErrInvalid, "the machine has no kernel")
	}
	return &machine{driver: d, h: *h, greeted: make(chan struct{}), ended: make(chan struct{}), stuck: make(chan struct{}, 1)}, nil
}

// Start implements vm.Machine.
func (m *machine) Start(ctx context.Context) (err error) {
	var undo []func()
	defer func() {
		if m.h.Network != nil {
			_ = m.h.Network.Close() // QEMU has its own
		}
		if err == nil {
			return
		}
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
		if ctx.Err() != nil {
			err = ctx.Err()
			return
		}
		err = atoll.E("start", m.h.ID, kindOf(err), err)
	}()
	for i, s := range m.h.Shares {
		undo = append(undo, func() { _ = os.Remove(m.shareSocket(i)) })
		p, err := m.share(i, s)
		if err != nil {
			return err
		}
		undo = append(undo, p.Kill)
		m.helpers = append(m.helpers, p)
	}
	if info, err := os.Stat(m.h.Console); err == nil {
		m.console = info.Size()
	}
	console, err := child.Console(m.h.Console)
	if err != nil {
		return err
	}
	undo = append(undo, func() { console.Close() })
	args, err := m.args()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	monitor, theirMonitor, err := socket.Files(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	undo = append(undo, func() { monitor.Close() })
	stream, theirStream, err := socket.Files(unix.SOCK_STREAM)
	if err != nil {
		theirMonitor.Close()
		return err
	}
	undo = append(undo, func() { stream.Close() })
	m.qemu, err = run(m.driver.program, args, console, []*os.File{theirMonitor, theirStream, m.h.Network})
	theirMonitor.Close() // else its end would not be seen
	theirStream.Close()
	if err != nil {
		return err
	}
	undo = append(undo, m.qemu.Kill)
	if m.driver.accel == accelTCG {
		hurry(m.qemu.PID(), true) // before it has threads
	}
	m.monitor = newMonitor(monitor, m.happen)
	undo = append(undo, m.monitor.close)
	if err := m.monitor.do(ctx, "qmp_capabilities", nil, nil); err != nil {
		if errors.Is(err, errHungUp) {
			<-m.qemu.Done()
			return fmt.Errorf("QEMU does not start: %w", errors.Join(cmp.Or(m.qemu.Err(), errHungUp), m.helpless()))
		}
		return err
	}
	m.work.Go(func() { m.greet(stream) })
	if m.driver.accel == accelTCG {
		m.work.Go(m.calm)
	}
	m.work.Go(m.unstick)
	m.work.Go(func() {
		defer console.Close()
		m.follow()
	})
	return nil
}

// helpless is why a daemon of a share has ended, nil if all go on.
func (m *machine) helpless() error {
	for _, p := range m.helpers {
		select {
		case <-p.Done():
			return cmp.Or(p.Err(), errors.New("virtiofsd has ended"))
		default:
		}
	}
	return nil
}

// kindOf is the kind of what keeps a machine from starting.
func kindOf(err error) atoll.Kind {
	switch kind := atoll.KindOf(err); {
	case kind != "" && kind != atoll.ErrInternal:
		return kind
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return atoll.ErrExhausted
	}
	return atoll.ErrUnavailable
}

// happen is told of events.
func (m *machine) happen(event message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case event.Event == "SHUTDOWN":
		m.reason = event.Data.Reason
	case event.Event == "BLOCK_IO_ERROR" && event.Data.Full && event.Data.Action == "stop":
		if !m.stalled() {
			m.stalls++
		}
		m.full = time.Now()
		select {
		case m.stuck <- struct{}{}:
		default:
		}
	}
}

// stallPause is how long it takes until it is tried whether there is room for a disk again.
const stallPause = time.Second

// unstick lets the machine go on that QEMU has stopped because the file of a disk could not
// grow: what the guest has written is written then, or it is stopped again.
func (m *machine) unstick() {
	for {
		select {
		case <-m.ended:
			return
		case <-m.stuck:
		}
		select {
		case <-m.ended:
			return
		case <-time.After(stallPause):
		}
		m.rule.Lock()
		if !m.paused { // else Resume does it
			_ = m.monitor.do(context.Background(), "cont", nil, nil) // it may have ended
		}
		m.rule.Unlock()
	}
}

// stalled reports whether the machine stands still since there is no room; m.mu is held.
// That there is some is known a while after it was tried.
func (m *machine) stalled() bool { return time.Since(m.full) < 2*stallPause }

// Stalled implements vm.Staller.
func (m *machine) Stalled() (now bool, times int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stalled(), m.stalls
}

// greet waits for the guest to come up.
func (m *machine) greet(stream io.ReadWriteCloser) {
	defer close(m.greeted)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m.work.Go(func() {
		select {
		case <-m.ended:
			cancel()
		case <-ctx.Done():
		}
	})
	m.line, _ = mux.Host(ctx, stream) // it fails when the machine ends
}

// follow notes how the machine ends.
func (m *machine) follow() {
	<-m.qemu.Done()
	m.monitor.close() // all that it has said is heard
	m.mu.Lock()
	defer m.mu.Unlock()
	defer close(m.ended)
	switch err := m.qemu.Err(); {
	case m.asked || m.reason == "guest-shutdown":
	case m.reason == "guest-reset" || m.reason == "guest-panic":
		m.failed = fmt.Errorf("the guest has crashed: %s", cmp.Or(vm.LastWords(m.h.Console, m.console), "it said nothing"))
	case err != nil:
		m.failed = err
	default:
		m.failed = fmt.Errorf("QEMU has ended: %s", cmp.Or(m.reason, "it did not say why"))
	}
}

// Dial implements vm.Machine: over vsock where the machine has that, else over the
// line on its serial port.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if m.h.CID != 0 {
		return m.dialVsock(ctx, port)
	}
	select {
	case <-m.greeted:
	case <-m.ended:
		return nil, m.gone("dial")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m.line == nil {
		return nil, m.gone("dial")
	}
	conn, err := m.line.Open()
	if err == nil {
		if err = mux.Connect(ctx, conn, port); err != nil {
			conn.Close()
		}
	}
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, "port %d of the machine: %w", port, err)
	}
	return conn, nil
}

// gone is the error of what needs a machine that runs.
func (m *machine) gone(op string) error {
	return atoll.Errorf(op, m.h.ID, atoll.ErrUnavailable, "the machine has ended")
}

// dialPause is how long it takes until a guest that does not answer is asked again.
const dialPause = 100 * time.Millisecond

func (m *machine) dialVsock(ctx context.Context, port uint32) (net.Conn, error) {
	for {
		conn, err := dialVsock(m.h.CID, port)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(dialPause):
		case <-m.ended:
			return nil, m.gone("dial")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Stop implements vm.Machine: the guest is asked on its control port.
func (m *machine) Stop(ctx context.Context) error {
	m.mu.Lock()
	m.asked = true
	m.mu.Unlock()
	if err := vm.PowerOff(ctx, m); err != nil {
		return err
	}
	return m.Wait(ctx)
}

// Kill implements vm.Machine.
func (m *machine) Kill() error {
	m.killed.Do(func() {
		m.mu.Lock()
		m.asked = true
		m.mu.Unlock()
		m.qemu.Kill()
		<-m.ended
		if <-m.greeted; m.line != nil {
			_ = m.line.Close()
		}
		for _, p := range m.helpers {
			p.Kill()
		}
		m.work.Wait()
		for i := range m.h.Shares {
			_ = os.Remove(m.shareSocket(i))
		}
	})
	return nil
}

// Wait implements vm.Machine.
func (m *machine) Wait(ctx context.Context) error {
	select {
	case <-m.ended:
		return m.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.pause(ctx, true, "pause", "stop") }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.pause(ctx, false, "resume", "cont") }

func (m *machine) pause(ctx context.Context, paused bool, op, command string) error {
	m.rule.Lock()
	defer m.rule.Unlock()
	err := m.monitor.do(ctx, command, nil, nil)
	if errors.Is(err, errHungUp) {
		return m.gone(op)
	}
	if err != nil {
		return atoll.E(op, m.h.ID, atoll.ErrInternal, err)
	}
	m.paused = paused
	return nil
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.h.ID, atoll.ErrUnsupported, "machines of QEMU have no snapshots")
}

// run starts a program, which has out as its stdout and files as its descriptors from 3
// on. It dies with this process.
func run(program string, args []string, out io.Writer, files []*os.File) (*child.Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.ExtraFiles, cmd.Env, cmd.Dir = out, files, []string{}, "/"
	return child.Start(cmd)
}
