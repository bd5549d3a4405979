package firecracker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/internal/child"
)

// The files in a machine's root directory, as Firecracker's API names them. The names are relative:
// a snapshot records them, and can be resumed in another directory.
const (
	baseDir    = "fc" // in Hardware.Dir; the root directory unless there is a jail
	apiSock    = "api.sock"
	vsockSock  = "v.sock"
	kernelFile = "kernel"
	initrdFile = "initrd"
	diskPrefix = "disk_"
)

// machine implements vm.Machine.
type machine struct {
	driver   *Driver
	hardware vm.Hardware
	root     string // the directory that Firecracker runs in

	mu      sync.Mutex
	started bool
	process *child.Process // nil until it runs
	console interface{ Close() error }
	paused  bool
	killed  bool

	api     *client
	guestUp atomic.Bool // the guest has taken a connection

	powerOffAsked atomic.Bool // to power off
	consoleStart  int64       // offset of this machine's output in its console
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
	err := m.launchProcess(ctx)
	if err == nil {
		if err = m.configureMachine(ctx); err == nil {
			return nil
		}
		err = m.failureCause(ctx, err)
	}
	m.releaseResources()
	return atoll.E("start", m.hardware.ID, kindOf(err), err)
}

// kindOf returns atoll.KindOf, but ErrInvalid for requests that Firecracker rejects.
func kindOf(err error) atoll.Kind {
	var f *apiError
	if errors.As(err, &f) && f.status/100 == 4 {
		return atoll.ErrInvalid
	}
	return atoll.KindOf(err)
}

// failureCause returns the cause of the error of a request: the end of ctx or of the hypervisor,
// else err.
func (m *machine) failureCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var f *apiError
	if errors.As(err, &f) {
		return err
	}
	select {
	case <-m.process.Done():
	case <-time.After(exitTimeout): // a connection ends before its process
		return err
	}
	if end := m.process.Err(); end != nil {
		return atoll.E("", "", atoll.ErrUnavailable, end)
	}
	return atoll.Errorf("", "", atoll.ErrUnavailable, "firecracker has ended")
}

// exitTimeout is the time that a process may take to end after its sockets have closed.
const exitTimeout = 5 * time.Second

// launchProcess starts Firecracker.
func (m *machine) launchProcess(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(m.hardware.Dir, baseDir)); err != nil { // left by a machine that was not killed
		return err
	}
	cmd, err := m.buildCommand()
	if err != nil {
		return err
	}
	console, err := child.Console(m.hardware.Console)
	if err != nil {
		return err
	}
	m.console = console
	if info, err := os.Stat(m.hardware.Console); err == nil {
		m.consoleStart = info.Size()
	}
	cmd.Stdout = console
	if m.process, err = child.Start(cmd); err != nil {
		return err
	}
	m.api = newClient(func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, m.root, apiSock) })
	return m.awaitAPI(ctx)
}

// buildCommand creates the root directory with the machine's files, and returns the command that
// starts Firecracker in it.
func (m *machine) buildCommand() (*exec.Cmd, error) {
	program, err := m.driver.findFirecracker()
	if err != nil {
		return nil, err
	}
	args := []string{"--api-sock", apiSock, "--level", "Error"}
	if m.driver.opts.Jail != nil {
		return m.jailCommand(program, args)
	}
	if err := os.Mkdir(m.root, 0o700); err != nil {
		return nil, err
	}
	for name, f := range m.rootFiles() {
		if err := os.Symlink(f.path, filepath.Join(m.root, name)); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(program, append([]string{"--id", m.hardware.ID}, args...)...)
	cmd.Dir = m.root
	cmd.Env = []string{} // Firecracker does not need ours
	return cmd, nil
}

// A machineFile is a file that the machine uses.
type machineFile struct {
	path     string
	readOnly bool
}

// rootFiles returns the files that belong into the root directory, by name.
func (m *machine) rootFiles() map[string]machineFile {
	all := map[string]machineFile{}
	if m.hardware.Snapshot != "" {
		all[stateFile] = machineFile{filepath.Join(m.hardware.Snapshot, stateFile), true}
		all[memoryFile] = machineFile{filepath.Join(m.hardware.Snapshot, memoryFile), true}
	} else {
		all[kernelFile] = machineFile{m.hardware.Kernel, true}
		if m.hardware.Initrd != "" {
			all[initrdFile] = machineFile{m.hardware.Initrd, true}
		}
	}
	for _, d := range m.hardware.Disks {
		all[diskPrefix+driveID(d.ID)] = machineFile{d.Path, d.ReadOnly}
	}
	return all
}

// driveID returns the id of a disk for Firecracker, which accepts '_' but not '-'.
func driveID(id string) string { return strings.ReplaceAll(id, "-", "_") }

// awaitAPI waits until Firecracker answers.
func (m *machine) awaitAPI(ctx context.Context) error {
	for {
		var i instance
		err := m.api.sendRequest(ctx, http.MethodGet, "/", nil, &i)
		var f *apiError
		switch {
		case err == nil && i.State == "Not started":
			return nil
		case err == nil:
			return atoll.Errorf("", "", atoll.ErrInternal, "a new firecracker already has a machine in state %q", i.State)
		case errors.As(err, &f):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.process.Done():
			return m.failureCause(ctx, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// configureMachine sends the hardware of the machine to Firecracker, and turns the machine on.
func (m *machine) configureMachine(ctx context.Context) error {
	if m.hardware.Snapshot != "" {
		return m.loadSnapshot(ctx)
	}
	type request struct {
		path string
		body any
	}
	boot := bootSource{Kernel: kernelFile, Args: m.kernelCmdline()}
	if m.hardware.Initrd != "" {
		boot.Initrd = initrdFile
	}
	all := []request{
		{"/machine-config", machineConfig{CPUs: m.hardware.CPUs, Memory: int(m.hardware.Memory >> 20)}},
		{"/boot-source", boot},
		{"/entropy", entropy{}},
	}
	for i, d := range m.hardware.Disks {
		id := driveID(d.ID)
		all = append(all, request{"/drives/" + id, drive{ID: id, Path: diskPrefix + id, ReadOnly: d.ReadOnly, Root: i == 0 && m.rootDisk()}})
	}
	if m.hardware.CID != 0 {
		all = append(all, request{"/vsock", vsock{CID: m.hardware.CID, Path: vsockSock}})
	}
	all = append(all, request{"/actions", action{"InstanceStart"}})
	for _, r := range all {
		if err := m.api.sendRequest(ctx, http.MethodPut, r.path, r.body, nil); err != nil {
			return err
		}
	}
	return nil
}

// rootDisk reports whether the first disk holds the root file system. Firecracker then tells the
// kernel so; it accepts one such disk.
func (m *machine) rootDisk() bool {
	for _, arg := range m.hardware.Cmdline {
		if strings.HasPrefix(arg, "root=") {
			return false
		}
	}
	return m.hardware.Initrd == ""
}

// baseCmdline tells kernels about this hardware: the console, that a reboot goes through the
// keyboard controller, which ends the machine, and that there is no PCI.
const baseCmdline = "console=ttyS0 reboot=k panic=1 pci=off"

// kernelCmdline returns the kernel's command line. Firecracker has no power-off, and assigns its
// own serial numbers to disks, so the words for both are on it.
func (m *machine) kernelCmdline() string {
	words := []string{baseCmdline, vm.WordRestart}
	if disks := vm.WordDisks(m.hardware.Disks); disks != "" {
		words = append(words, disks)
	}
	return strings.Join(append(words, m.hardware.Cmdline...), " ")
}

// releaseResources frees all that the machine holds.
func (m *machine) releaseResources() {
	if m.process != nil {
		m.process.Kill()
	}
	if m.api != nil {
		m.api.close()
	}
	if m.console != nil {
		_ = m.console.Close()
	}
	m.removeCgroups()
	_ = os.RemoveAll(filepath.Join(m.hardware.Dir, baseDir)) // leftovers are removed with Dir
}

// runningProcess returns the hypervisor's process. Kinds: ErrStopped.
func (m *machine) runningProcess(op string) (*child.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return nil, atoll.Errorf(op, m.hardware.ID, atoll.ErrStopped, "the machine is not started")
	}
	return m.process, nil
}

// The times and the error of Dial.
const (
	dialPause        = 100 * time.Millisecond // between attempts
	dialTimeout      = 5 * time.Second        // of one attempt: a booting guest may have lost the request
	noListenerFormat = "nothing listens on port %d of the guest"
)

// Dial implements vm.Machine. Firecracker hangs up if nothing listens, perhaps because the guest is
// still booting: until the guest has accepted a first connection, Dial retries.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	p, err := m.runningProcess("dial")
	if err != nil {
		return nil, err
	}
	if m.hardware.CID == 0 {
		return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnsupported, "the machine has no vsock: give it a CID")
	}
	fail := func(kind atoll.Kind, err error) (net.Conn, error) {
		return nil, atoll.E("dial", m.hardware.ID, kind, err)
	}
	for refused := false; ; {
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
		hungUp := errors.Is(err, mux.ErrRefused)
		refused = refused || hungUp
		switch {
		case ctx.Err() != nil && !refused:
			return fail(atoll.KindOf(ctx.Err()), ctx.Err())
		case ctx.Err() != nil || hungUp && m.guestUp.Load():
			return nil, atoll.Errorf("dial", m.hardware.ID, atoll.ErrUnavailable, noListenerFormat, port)
		case !hungUp && !isTransient(err):
			return fail(atoll.ErrInternal, err)
		}
		select {
		case <-ctx.Done():
		case <-p.Done():
		case <-time.After(dialPause):
		}
	}
}

// dialOnce tries once to connect to a port.
func (m *machine) dialOnce(ctx context.Context, port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := dialSocket(ctx, m.root, vsockSock)
	if err != nil {
		return nil, err
	}
	if err := mux.Connect(ctx, conn, port); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// isTransient reports whether a retry may succeed.
func isTransient(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNoListener)
}

// Stop implements vm.Machine: it asks Atoll guests on their port, and sends others Ctrl+Alt+Del,
// for which the kernel needs a keyboard. Only x86 has one.
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
	m.mu.Lock()
	paused := m.paused
	m.mu.Unlock()
	keyboard := runtime.GOARCH == "amd64"
	switch {
	case paused:
		return atoll.Errorf("stop", m.hardware.ID, atoll.ErrConflict, "the machine is paused: resume it first")
	case !keyboard && m.hardware.CID == 0:
		return atoll.Errorf("stop", m.hardware.ID, atoll.ErrUnsupported, "on %s a guest without vsock cannot power off: give the machine a CID, or kill it", runtime.GOARCH)
	}
	m.powerOffAsked.Store(true)
	if keyboard {
		if err := m.callAPI(ctx, "stop", http.MethodPut, "/actions", action{"SendCtrlAltDel"}); err != nil {
			select {
			case <-p.Done():
				return nil
			default:
				return err
			}
		}
	}
	asking, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	if m.hardware.CID != 0 {
		asked.Go(func() { _ = vm.PowerOff(asking, m) }) // success shows below
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return atoll.E("stop", m.hardware.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
}

// callAPI sends a request about a running machine.
func (m *machine) callAPI(ctx context.Context, op, method, path string, body any) error {
	if err := m.api.sendRequest(ctx, method, path, body, nil); err != nil {
		err = m.failureCause(ctx, err)
		return atoll.E(op, m.hardware.ID, atoll.KindOf(err), err)
	}
	return nil
}

// Kill implements vm.Machine.
func (m *machine) Kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil || m.killed {
		return nil
	}
	select {
	case <-m.process.Done():
	default:
		m.process.Kill()
		m.killed = true // it did not end by itself
	}
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
	if m.killed {
		return nil
	}
	err = p.Err()
	if err == nil && !m.powerOffAsked.Load() { // Firecracker ends alike after a panic
		if words := vm.LastWords(m.hardware.Console, m.consoleStart); strings.HasPrefix(words, "kernel panic") {
			err = errors.New("the guest has crashed: " + words)
		}
	}
	if err == nil {
		return nil
	}
	return atoll.E("wait", m.hardware.ID, atoll.ErrInternal, err)
}

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.setPaused(ctx, "pause", true) }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.setPaused(ctx, "resume", false) }

func (m *machine) setPaused(ctx context.Context, op string, paused bool) error {
	if _, err := m.runningProcess(op); err != nil {
		return err
	}
	want := state{"Resumed"}
	if paused {
		want.State = "Paused"
	}
	if err := m.callAPI(ctx, op, http.MethodPatch, "/vm", want); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = paused
	return nil
}

var _ vm.Machine = (*machine)(nil)
