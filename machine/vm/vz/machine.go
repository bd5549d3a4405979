package vz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/internal/child"
)

// machine implements vm.Machine.
type machine struct {
	driver   *Driver
	hardware vm.Hardware
	dir      string // for sockets

	mu       sync.Mutex
	started  bool
	process  *child.Process // nil until it runs
	killed   bool           // Kill ended it
	released bool

	rest    *client
	console *follower // nil until it runs
	paused  atomic.Bool
	guestUp atomic.Bool // the guest has taken a connection
}

// Start implements vm.Machine.
func (m *machine) Start(ctx context.Context) error {
	m.mu.Lock()
	begun := m.started
	m.started = true
	m.mu.Unlock()
	if begun {
		return atoll.Errorf("start", m.hardware.ID, atoll.ErrConflict, "a machine starts once: make another one")
	}
	if m.hardware.Network != nil {
		defer m.hardware.Network.Close() // vfkit has its own
	}
	err := m.launchVfkit(ctx)
	if err == nil {
		if err = m.awaitRunning(ctx); err == nil {
			return nil
		}
	}
	m.releaseResources()
	m.released = true
	return atoll.E("start", m.hardware.ID, atoll.KindOf(err), err)
}

// launchVfkit starts vfkit.
func (m *machine) launchVfkit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	program, err := m.driver.findVfkit()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil { // left by a machine that was not killed
		return err
	}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return err
	}
	console, err := child.Console(m.hardware.Console)
	if err != nil {
		return err
	}
	cmd := exec.Command(program, m.buildArgs()...)
	cmd.Dir = m.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + os.Getenv("HOME")} // vfkit does not need ours
	if m.hardware.Network != nil {
		cmd.ExtraFiles = []*os.File{m.hardware.Network} // networkFD
	}
	if m.process, err = child.Start(cmd); err != nil {
		return errors.Join(err, console.Close())
	}
	m.console = followFile(m.filePath(consoleFile), console)
	m.rest = newClient(m.filePath(restSock))
	return nil
}

// awaitRunning waits until the machine runs and its sockets exist.
func (m *machine) awaitRunning(ctx context.Context) error {
	for {
		now, err := m.rest.currentState(ctx)
		switch {
		case err == nil && now == stateFailed:
			return atoll.Errorf("", "", atoll.ErrInternal, "the machine could not be turned on")
		case err == nil && now == stateRunning && m.hasSockets():
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.process.Done():
			return atoll.E("", "", atoll.ErrUnavailable, m.exitError())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// hasSockets reports whether all ports have their sockets, which appear after the machine.
func (m *machine) hasSockets() bool {
	return !slices.ContainsFunc(m.listenPorts(), func(p uint32) bool {
		_, err := os.Lstat(m.portSocket(p))
		return err != nil
	})
}

// exitError returns how vfkit ended.
func (m *machine) exitError() error {
	err := m.process.Err()
	switch {
	case err == nil:
		return errors.New("vfkit has ended")
	case strings.Contains(err.Error(), "com.apple.security.virtualization"):
		return fmt.Errorf("%w; %s", err, fixSign)
	}
	return err
}

// releaseResources frees all that the machine holds.
func (m *machine) releaseResources() {
	if m.process != nil {
		m.process.Kill()
	}
	if m.rest != nil {
		m.rest.close()
	}
	if m.console != nil {
		m.console.close()
	}
	_ = os.RemoveAll(m.dir) // leftovers are removed with Dir
}

// runningProcess returns the process of the machine. Kinds: ErrStopped.
func (m *machine) runningProcess(op string) (*child.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return nil, atoll.Errorf(op, m.hardware.ID, atoll.ErrStopped, "the machine is not started")
	}
	return m.process, nil
}

// The times of Dial.
const (
	dialPause      = 100 * time.Millisecond // between attempts
	hangUpTime     = 100 * time.Millisecond // vfkit hangs up within this time if nothing listens
	bootHangUpTime = 500 * time.Millisecond // and within this time while the guest boots
)

// Dial implements vm.Machine. vfkit accepts every connection before it asks the guest, whose answer
// it does not report; it hangs up if nothing listens. So Dial takes a connection that stays open
// for a moment. Half-close depends on vfkit, so connections have none.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	p, err := m.runningProcess("dial")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(m.listenPorts(), port) {
		return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrInvalid, "port %d is not among the ports of the machine: %v", port, m.hardware.Ports)
	}
	for refused := false; ; refused = true {
		conn, err := m.dialOnce(ctx, port)
		if err == nil {
			m.guestUp.Store(true)
			return conn, nil
		}
		select {
		case <-p.Done():
			return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, "the machine has ended")
		default:
		}
		select {
		case <-ctx.Done():
			if refused || !errors.Is(err, ctx.Err()) {
				return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, "nothing listens on port %d of the guest", port)
			}
			return nil, atoll.E("dial", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
		case <-p.Done():
		case <-time.After(dialPause):
		}
	}
}

// dialOnce tries once to connect to a port.
func (m *machine) dialOnce(ctx context.Context, port uint32) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", m.portSocket(port))
	if err != nil {
		return nil, err
	}
	wait := bootHangUpTime
	if m.guestUp.Load() {
		wait = hangUpTime
	}
	early := make([]byte, 1)
	err = c.SetReadDeadline(time.Now().Add(wait))
	n := 0
	if err == nil {
		n, err = c.Read(early)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &conn{Conn: c, early: early[:n]}, nil
}

// conn is a connection of which one byte may have been read already.
type conn struct {
	net.Conn
	mu    sync.Mutex
	early []byte
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	n := copy(b, c.early)
	c.early = c.early[n:]
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	return c.Conn.Read(b)
}

// Stop implements vm.Machine: it asks Atoll guests on their port, and others by the power button.
func (m *machine) Stop(ctx context.Context) error {
	p, err := m.runningProcess("stop")
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return nil
	default:
	}
	if m.paused.Load() {
		return atoll.Errorf("stop", m.hardware.ID, atoll.ErrConflict, "the machine is paused: resume it first")
	}
	_ = m.rest.requestState(ctx, toStop) // guests that ignore the button may listen
	asking, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	asked.Go(func() { _ = vm.PowerOff(asking, m) }) // success shows below
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return atoll.E("stop", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
}

// requestState asks vfkit to change the machine's state.
func (m *machine) requestState(ctx context.Context, p *child.Process, op, what string) error {
	err := m.rest.requestState(ctx, what)
	if err == nil {
		return nil
	}
	select {
	case <-p.Done():
		return atoll.Errorf(op, m.hardware.ID, atoll.ErrUnavailable, "the machine has ended")
	default:
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return atoll.E(op, m.hardware.ID, atoll.KindOf(err), err)
}

// Kill implements vm.Machine.
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
	m.released = true
	m.releaseResources()
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
	return atoll.E("wait", m.hardware.ID, atoll.ErrInternal, m.exitError())
}

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.setPaused(ctx, "pause", toPause, true) }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	return m.setPaused(ctx, "resume", toResume, false)
}

// setPaused pauses or resumes the machine, unless it is so already: vfkit fails then.
func (m *machine) setPaused(ctx context.Context, op, what string, paused bool) error {
	p, err := m.runningProcess(op)
	if err != nil {
		return err
	}
	if m.paused.Load() == paused {
		return nil
	}
	if err := m.requestState(ctx, p, op, what); err != nil {
		return err
	}
	m.paused.Store(paused)
	return nil
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.hardware.ID, atoll.ErrUnsupported, "vfkit has no snapshots")
}

// Probe implements vm.Driver. It runs vfkit, and asks the kernel for the hypervisor.
func (d *Driver) Probe(ctx context.Context) atoll.Probe {
	if !d.isSupported() {
		return atoll.Probe{Reason: unsupportedReason(), Fix: "on Linux use qemu or firecracker, on Windows wsl2"}
	}
	program, err := d.findVfkit()
	if err != nil {
		return atoll.Probe{Reason: "vfkit is not installed", Fix: fixInstall}
	}
	version, err := exec.CommandContext(ctx, program, "--version").CombinedOutput()
	if err != nil {
		return atoll.Probe{Reason: fmt.Sprintf("%s --version: %v: %s", program, err, version), Fix: fixInstall}
	}
	support, err := exec.CommandContext(ctx, "sysctl", "-n", hypervisor).CombinedOutput()
	if err != nil || string(bytes.TrimSpace(support)) != "1" {
		return atoll.Probe{Reason: fmt.Sprintf("this machine has no hypervisor (%s: %s)", hypervisor, bytes.TrimSpace(support)), Fix: "use a Mac, not a virtual one"}
	}
	return atoll.Probe{OK: true, Notes: []string{string(bytes.TrimSpace(version))}}
}

// hypervisor is the sysctl of macOS for the hypervisor.
const hypervisor = "kern.hv_support"

var _ vm.Machine = (*machine)(nil)
