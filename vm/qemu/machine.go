//go:build linux

package qemu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/line"
	"github.com/seed46cd37a8/atoll/vm"
)

// A machine is a process of QEMU, which dies with this one.
type machine struct {
	driver *Driver
	h      vm.Hardware

	helpers []*process // the daemons of shares
	qemu    *process
	monitor *monitor
	console int64 // where what it prints begins

	greeted chan struct{} // closed when the guest has answered, or will not
	line    *line.Session // nil if it has not

	mu     sync.Mutex
	asked  bool   // it is to end
	reason string // why it does, as QEMU says

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
	return &machine{driver: d, h: *h, greeted: make(chan struct{}), ended: make(chan struct{})}, nil
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
		p, err := m.share(ctx, i, s)
		if err != nil {
			return err
		}
		undo = append(undo, p.kill)
		m.helpers = append(m.helpers, p)
	}
	console, err := vm.OpenConsole(m.h.Console)
	if err != nil {
		return err
	}
	defer console.Close()
	if info, err := console.Stat(); err == nil {
		m.console = info.Size()
	}
	args, err := m.args()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	monitor, theirMonitor, err := pair()
	if err != nil {
		return err
	}
	undo = append(undo, func() { monitor.Close() })
	stream, theirStream, err := pair()
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
	undo = append(undo, m.qemu.kill)
	m.monitor = newMonitor(monitor, m.happen)
	undo = append(undo, m.monitor.close)
	if err := m.monitor.do(ctx, "qmp_capabilities", nil, nil); err != nil {
		if errors.Is(err, errHungUp) {
			<-m.qemu.ended
			return fmt.Errorf("QEMU does not start: %s", cmp.Or(m.qemu.said(), m.qemu.exit().Error()))
		}
		return err
	}
	m.work.Go(func() { m.greet(stream) })
	m.work.Go(m.follow)
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

// pair are two ends of a socket, of which QEMU is given one.
func pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "machine"), os.NewFile(uintptr(fds[1]), "qemu"), nil
}

// happen is told of events.
func (m *machine) happen(event, reason string) {
	if event == "SHUTDOWN" {
		m.mu.Lock()
		m.reason = reason
		m.mu.Unlock()
	}
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
	m.line, _ = line.Host(ctx, stream) // it fails when the machine ends
}

// follow notes how the machine ends.
func (m *machine) follow() {
	<-m.qemu.ended
	m.monitor.close() // all that it has said is heard
	m.mu.Lock()
	defer m.mu.Unlock()
	defer close(m.ended)
	switch exit := m.qemu.exit(); {
	case m.asked || m.reason == "guest-shutdown":
	case m.reason == "guest-reset" || m.reason == "guest-panic":
		m.failed = fmt.Errorf("the guest has crashed: %s", cmp.Or(vm.LastWords(m.h.Console, m.console), "it said nothing"))
	case exit != nil:
		m.failed = fmt.Errorf("QEMU has ended (%w): %s", exit, cmp.Or(m.qemu.said(), "it said nothing"))
	default:
		m.failed = fmt.Errorf("QEMU has ended: %s", cmp.Or(m.reason, m.qemu.said(), "it said nothing"))
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
		if err = line.Connect(ctx, conn, port); err != nil {
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
		m.qemu.kill()
		<-m.ended
		if <-m.greeted; m.line != nil {
			_ = m.line.Close()
		}
		for _, p := range m.helpers {
			p.kill()
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
func (m *machine) Pause(ctx context.Context) error { return m.command(ctx, "pause", "stop") }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.command(ctx, "resume", "cont") }

func (m *machine) command(ctx context.Context, op, command string) error {
	err := m.monitor.do(ctx, command, nil, nil)
	if errors.Is(err, errHungUp) {
		return m.gone(op)
	}
	if err != nil {
		return atoll.E(op, m.h.ID, atoll.ErrInternal, err)
	}
	return nil
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.h.ID, atoll.ErrUnsupported, "machines of QEMU have no snapshots")
}

// shareSocket is where the daemon of a share listens.
func (m *machine) shareSocket(i int) string {
	return filepath.Join(m.h.Dir, "share"+strconv.Itoa(i)+".sock")
}

// A process dies with the one that has started it.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of its Wait
	words *tail
}

// run starts a program, which has out as its stdout and files as its descriptors from 3 on.
func run(program string, args []string, out *os.File, files []*os.File) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{}), words: &tail{}}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles, p.cmd.Env, p.cmd.Dir = out, p.words, files, []string{}, "/"
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // it is killed when the thread ends that has started it
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// kill ends the process, and waits for that.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// exit is how it has ended, nil if that was as it should.
func (p *process) exit() error { return p.err }

// said is the end of what it said on stderr.
func (p *process) said() string { return p.words.text() }

// A tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailSize = 2 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if over := len(t.end) - tailSize; over > 0 {
		t.end = append([]byte(nil), t.end[over:]...)
	}
	return len(b), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.end))
}
