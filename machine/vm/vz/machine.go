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
	d   *Driver
	h   vm.Hardware
	dir string // for sockets

	mu     sync.Mutex
	begun  bool
	p      *child.Process // nil until it runs
	killed bool           // rather than ended
	gone   bool

	rest    *client
	console *follower // nil until it runs
	paused  atomic.Bool
	up      atomic.Bool // the guest has taken a connection
}

// Start implements vm.Machine.
func (m *machine) Start(ctx context.Context) error {
	m.mu.Lock()
	begun := m.begun
	m.begun = true
	m.mu.Unlock()
	if begun {
		return atoll.Errorf("start", m.h.ID, atoll.ErrConflict, "a machine starts once: make another one")
	}
	if m.h.Network != nil {
		defer m.h.Network.Close() // vfkit has its own
	}
	err := m.launch(ctx)
	if err == nil {
		if err = m.runs(ctx); err == nil {
			return nil
		}
	}
	m.remove()
	m.gone = true
	return atoll.E("start", m.h.ID, atoll.KindOf(err), err)
}

func (m *machine) launch(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	program, err := m.d.program()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil { // of one that was not told to end
		return err
	}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return err
	}
	console, err := child.Console(m.h.Console)
	if err != nil {
		return err
	}
	cmd := exec.Command(program, m.args()...)
	cmd.Dir = m.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + os.Getenv("HOME")} // ours is not its business
	if m.h.Network != nil {
		cmd.ExtraFiles = []*os.File{m.h.Network} // networkFD
	}
	if m.p, err = child.Start(cmd); err != nil {
		return errors.Join(err, console.Close())
	}
	m.console = follow(m.path(consoleFile), console)
	m.rest = newClient(m.path(restSock))
	return nil
}

// runs waits until the machine is on, and its sockets are there.
func (m *machine) runs(ctx context.Context) error {
	for {
		now, err := m.rest.now(ctx)
		switch {
		case err == nil && now == failed:
			return atoll.Errorf("", "", atoll.ErrInternal, "the machine could not be turned on")
		case err == nil && now == running && m.reachable():
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.p.Done():
			return atoll.E("", "", atoll.ErrUnavailable, m.ended())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// reachable reports whether all ports have their sockets, which come after the machine.
func (m *machine) reachable() bool {
	return !slices.ContainsFunc(m.ports(), func(p uint32) bool {
		_, err := os.Lstat(m.port(p))
		return err != nil
	})
}

// ended is what became of vfkit.
func (m *machine) ended() error {
	err := m.p.Err()
	switch {
	case err == nil:
		return errors.New("vfkit has ended")
	case strings.Contains(err.Error(), "com.apple.security.virtualization"):
		return fmt.Errorf("%w; %s", err, fixSign)
	}
	return err
}

// remove frees all that the machine holds.
func (m *machine) remove() {
	if m.p != nil {
		m.p.Kill()
	}
	if m.rest != nil {
		m.rest.close()
	}
	if m.console != nil {
		m.console.close()
	}
	_ = os.RemoveAll(m.dir) // what is left of it is removed with Dir
}

// active returns the process of the machine. Kinds: ErrStopped.
func (m *machine) active(op string) (*child.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.p == nil {
		return nil, atoll.Errorf(op, m.h.ID, atoll.ErrStopped, "the machine is not started")
	}
	return m.p, nil
}

// How a guest is dialled.
const (
	pause  = 100 * time.Millisecond // between attempts
	settle = 100 * time.Millisecond // vfkit hangs up within, where nothing listens
	first  = 500 * time.Millisecond // and within, while the guest is booting
)

// Dial implements vm.Machine. vfkit takes every connection and only then asks the guest,
// of which it says nothing; it hangs up when nothing listens. One that it has kept for a
// moment counts. Whether it half-closes depends on vfkit, so it does not.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	p, err := m.active("dial")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(m.ports(), port) {
		return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrInvalid, "port %d is not among those that the machine was made with: %v", port, m.h.Ports)
	}
	for refused := false; ; refused = true {
		conn, err := m.attempt(ctx, port)
		if err == nil {
			m.up.Store(true)
			return conn, nil
		}
		select {
		case <-p.Done():
			return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, "the machine has ended")
		default:
		}
		select {
		case <-ctx.Done():
			if refused || !errors.Is(err, ctx.Err()) {
				return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, "nothing listens on port %d of the guest", port)
			}
			return nil, atoll.E("dial", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
		case <-p.Done():
		case <-time.After(pause):
		}
	}
}

// attempt connects to a port once.
func (m *machine) attempt(ctx context.Context, port uint32) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", m.port(port))
	if err != nil {
		return nil, err
	}
	wait := first
	if m.up.Load() {
		wait = settle
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

// conn is a connection of which a byte may have been read.
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

// Stop implements vm.Machine: guests of ours are asked on their port, others by the power
// button.
func (m *machine) Stop(ctx context.Context) error {
	p, err := m.active("stop")
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return nil
	default:
	}
	if m.paused.Load() {
		return atoll.Errorf("stop", m.h.ID, atoll.ErrConflict, "the machine is paused: resume it first")
	}
	_ = m.rest.become(ctx, toStop) // a guest without that button may listen
	asking, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	asked.Go(func() { _ = vm.PowerOff(asking, m) }) // that it has worked is seen below
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return atoll.E("stop", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
}

// ask has the machine become something.
func (m *machine) ask(ctx context.Context, p *child.Process, op, what string) error {
	err := m.rest.become(ctx, what)
	if err == nil {
		return nil
	}
	select {
	case <-p.Done():
		return atoll.Errorf(op, m.h.ID, atoll.ErrUnavailable, "the machine has ended")
	default:
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return atoll.E(op, m.h.ID, atoll.KindOf(err), err)
}

// Kill implements vm.Machine.
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
	m.gone = true
	m.remove()
	return nil
}

// Wait implements vm.Machine.
func (m *machine) Wait(ctx context.Context) error {
	p, err := m.active("wait")
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
	return atoll.E("wait", m.h.ID, atoll.ErrInternal, m.ended())
}

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.setPaused(ctx, "pause", toPause, true) }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	return m.setPaused(ctx, "resume", toResume, false)
}

// setPaused asks vfkit, which does not do it twice.
func (m *machine) setPaused(ctx context.Context, op, what string, paused bool) error {
	p, err := m.active(op)
	if err != nil {
		return err
	}
	if m.paused.Load() == paused {
		return nil
	}
	if err := m.ask(ctx, p, op, what); err != nil {
		return err
	}
	m.paused.Store(paused)
	return nil
}

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", m.h.ID, atoll.ErrUnsupported, "vfkit has no snapshots")
}

// Probe implements vm.Driver. It asks vfkit, and the kernel for the hypervisor.
func (d *Driver) Probe(ctx context.Context) atoll.Probe {
	if !d.here() {
		return atoll.Probe{Reason: elsewhere(), Fix: "on Linux use qemu or firecracker, on Windows wsl2"}
	}
	program, err := d.program()
	if err != nil {
		return atoll.Probe{Reason: "there is no vfkit", Fix: fixInstall}
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

// hypervisor is what macOS calls it.
const hypervisor = "kern.hv_support"

var _ vm.Machine = (*machine)(nil)
