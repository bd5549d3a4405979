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

// A machine is a process of QEMU, which ends with this process.
type machine struct {
	driver   *Driver
	hardware vm.Hardware

	daemons      []*child.Process // the daemons of shares
	qemu         *child.Process
	monitor      *monitor
	consoleStart int64 // where the machine's output begins in the console

	guestReady chan struct{} // closed when the guest has answered, or never will
	session    *mux.Session  // nil if it has not

	mu       sync.Mutex
	endAsked bool      // Stop or Kill was called
	reason   string    // of the end, as QEMU reports it
	lastFull time.Time // the last time that a disk had no room
	stalls   int       // the number of stalls because of that

	pauseMu sync.Mutex // held while the machine is paused or resumed
	paused  bool       // guarded by pauseMu: Pause was called
	stuck   chan struct{}

	ended  chan struct{} // closed when QEMU has ended, and reason and failed are set
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
	return &machine{driver: d, hardware: *h, guestReady: make(chan struct{}), ended: make(chan struct{}), stuck: make(chan struct{}, 1)}, nil
}

// Start implements vm.Machine.
func (m *machine) Start(ctx context.Context) (err error) {
	var undo []func()
	defer func() {
		if m.hardware.Network != nil {
			_ = m.hardware.Network.Close() // QEMU has its own
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
		err = atoll.E("start", m.hardware.ID, kindOf(err), err)
	}()
	for i, s := range m.hardware.Shares {
		undo = append(undo, func() { _ = os.Remove(m.shareSocket(i)) })
		p, err := m.startShareDaemon(i, s)
		if err != nil {
			return err
		}
		undo = append(undo, p.Kill)
		m.daemons = append(m.daemons, p)
	}
	if info, err := os.Stat(m.hardware.Console); err == nil {
		m.consoleStart = info.Size()
	}
	console, err := child.Console(m.hardware.Console)
	if err != nil {
		return err
	}
	undo = append(undo, func() { console.Close() })
	args, err := m.buildArgs()
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
	m.qemu, err = startProgram(m.driver.program, args, console, []*os.File{theirMonitor, theirStream, m.hardware.Network})
	theirMonitor.Close() // else we would not see QEMU's end
	theirStream.Close()
	if err != nil {
		return err
	}
	undo = append(undo, m.qemu.Kill)
	if m.driver.accel == accelTCG {
		setBoost(m.qemu.PID(), true) // before QEMU has threads
	}
	m.monitor = newMonitor(monitor, m.handleEvent)
	undo = append(undo, m.monitor.close)
	if err := m.monitor.execCommand(ctx, "qmp_capabilities", nil, nil); err != nil {
		if errors.Is(err, errHungUp) {
			<-m.qemu.Done()
			return fmt.Errorf("QEMU does not start: %w", errors.Join(cmp.Or(m.qemu.Err(), errHungUp), m.shareDaemonError()))
		}
		return err
	}
	m.work.Go(func() { m.awaitGuest(stream) })
	if m.driver.accel == accelTCG {
		m.work.Go(m.endBoost)
	}
	m.work.Go(m.resumeStalled)
	m.work.Go(func() {
		defer console.Close()
		m.recordEnd()
	})
	return nil
}

// shareDaemonError returns why a daemon of a share has ended; nil if all run.
func (m *machine) shareDaemonError() error {
	for _, p := range m.daemons {
		select {
		case <-p.Done():
			return cmp.Or(p.Err(), errors.New("virtiofsd has ended"))
		default:
		}
	}
	return nil
}

// kindOf returns the kind of an error of Start.
func kindOf(err error) atoll.Kind {
	switch kind := atoll.KindOf(err); {
	case kind != "" && kind != atoll.ErrInternal:
		return kind
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return atoll.ErrExhausted
	}
	return atoll.ErrUnavailable
}

// handleEvent records an event of QEMU.
func (m *machine) handleEvent(event message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case event.Event == "SHUTDOWN":
		m.reason = event.Data.Reason
	case event.Event == "BLOCK_IO_ERROR" && event.Data.Full && event.Data.Action == "stop":
		if !m.isStalled() {
			m.stalls++
		}
		m.lastFull = time.Now()
		select {
		case m.stuck <- struct{}{}:
		default:
		}
	}
}

// stallPause is the time between two attempts to resume a machine that waits for room on a disk.
const stallPause = time.Second

// resumeStalled resumes the machine after QEMU has stopped it because the file of a disk could not
// grow: QEMU then repeats the guest's write, or stops again.
func (m *machine) resumeStalled() {
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
		m.pauseMu.Lock()
		if !m.paused { // else Resume does it
			_ = m.monitor.execCommand(context.Background(), "cont", nil, nil) // it may have ended
		}
		m.pauseMu.Unlock()
	}
}

// isStalled reports whether the machine is stopped for lack of room; m.mu is held. It turns false
// some time after the first successful attempt.
func (m *machine) isStalled() bool { return time.Since(m.lastFull) < 2*stallPause }

// Stalled implements vm.Staller.
func (m *machine) Stalled() (now bool, times int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isStalled(), m.stalls
}

// awaitGuest waits for the guest to come up, and opens the session with it.
func (m *machine) awaitGuest(stream io.ReadWriteCloser) {
	defer close(m.guestReady)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m.work.Go(func() {
		select {
		case <-m.ended:
			cancel()
		case <-ctx.Done():
		}
	})
	m.session, _ = mux.Host(ctx, stream) // fails when the machine ends
}

// recordEnd waits for the end of QEMU, and records its reason.
func (m *machine) recordEnd() {
	<-m.qemu.Done()
	m.monitor.close() // QEMU's last events are handled then
	m.mu.Lock()
	defer m.mu.Unlock()
	defer close(m.ended)
	switch err := m.qemu.Err(); {
	case m.endAsked || m.reason == "guest-shutdown":
	case m.reason == "guest-reset" || m.reason == "guest-panic":
		m.failed = fmt.Errorf("the guest has crashed: %s", cmp.Or(vm.LastWords(m.hardware.Console, m.consoleStart), "it said nothing"))
	case err != nil:
		m.failed = err
	default:
		m.failed = fmt.Errorf("QEMU has ended: %s", cmp.Or(m.reason, "unknown reason"))
	}
}

// Dial implements vm.Machine: over vsock if the machine has one, else over the session on its
// serial port.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if m.hardware.CID != 0 {
		return m.dialVsock(ctx, port)
	}
	select {
	case <-m.guestReady:
	case <-m.ended:
		return nil, m.endedError("dial")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m.session == nil {
		return nil, m.endedError("dial")
	}
	conn, err := m.session.Open()
	if err == nil {
		if err = mux.Connect(ctx, conn, port); err != nil {
			conn.Close()
		}
	}
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, "port %d of the machine: %w", port, err)
	}
	return conn, nil
}

// endedError returns the error of calls that need a running machine.
func (m *machine) endedError(op string) error {
	return atoll.Errorf(op, m.hardware.ID, atoll.ErrUnavailable, "the machine has ended")
}

// dialPause is the time between two attempts to connect to a guest.
const dialPause = 100 * time.Millisecond

func (m *machine) dialVsock(ctx context.Context, port uint32) (net.Conn, error) {
	for {
		conn, err := dialVsock(m.hardware.CID, port)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(dialPause):
		case <-m.ended:
			return nil, m.endedError("dial")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Stop implements vm.Machine: it asks the guest on its power-off port.
func (m *machine) Stop(ctx context.Context) error {
	m.mu.Lock()
	m.endAsked = true
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
		m.endAsked = true
		m.mu.Unlock()
		m.qemu.Kill()
		<-m.ended
		if <-m.guestReady; m.session != nil {
			_ = m.session.Close()
		}
		for _, p := range m.daemons {
			p.Kill()
		}
		m.work.Wait()
		for i := range m.hardware.Shares {
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
func (m *machine) Pause(ctx context.Context) error { return m.setPaused(ctx, true, "pause", "stop") }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.setPaused(ctx, false, "resume", "cont") }

func (m *machine) setPaused(ctx context.Context, paused bool, op, command string) error {
	m.pauseMu.Lock()
	defer m.pauseMu.Unlock()
	err := m.monitor.execCommand(ctx, command, nil, nil)
	if errors.Is(err, errHungUp) {
		return m.endedError(op)
	}
	if err != nil {
		return atoll.E(op, m.hardware.ID, atoll.ErrInternal, err)
	}
	m.paused = paused
	return nil
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.hardware.ID, atoll.ErrUnsupported, "machines of QEMU have no snapshots")
}

// startProgram starts a program with out as its stdout and files as its descriptors from 3 on. The
// program ends with this process.
func startProgram(program string, args []string, out io.Writer, files []*os.File) (*child.Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.ExtraFiles, cmd.Env, cmd.Dir = out, files, []string{}, "/"
	return child.Start(cmd)
}
