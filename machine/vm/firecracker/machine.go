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

// What is in a machine's root directory, by the names that Firecracker knows them by.
// They are relative: a snapshot, which holds them, can be gone on from in another one.
const (
	baseDir    = "fc" // in Hardware.Dir, and the root unless there is a jail
	apiSock    = "api.sock"
	vsockSock  = "v.sock"
	kernelFile = "kernel"
	initrdFile = "initrd"
	diskPrefix = "disk_"
)

// machine implements vm.Machine.
type machine struct {
	d    *Driver
	h    vm.Hardware
	root string // the directory that Firecracker runs in

	mu      sync.Mutex
	begun   bool
	p       *child.Process // nil until it runs
	console interface{ Close() error }
	paused  bool
	killed  bool

	api *client
	up  atomic.Bool // the guest has taken a connection

	asked atomic.Bool // to power off
	begin int64       // of what this machine prints, on its console
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
	err := m.launch(ctx)
	if err == nil {
		if err = m.configure(ctx); err == nil {
			return nil
		}
		err = m.why(ctx, err)
	}
	m.undo()
	return atoll.E("start", m.h.ID, kindOf(err), err)
}

// kindOf is atoll.KindOf, and ErrInvalid for what Firecracker does not take.
func kindOf(err error) atoll.Kind {
	var f *fault
	if errors.As(err, &f) && f.status/100 == 4 {
		return atoll.ErrInvalid
	}
	return atoll.KindOf(err)
}

// why is the cause of err, which a request met: the end of ctx or of the hypervisor.
func (m *machine) why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var f *fault
	if errors.As(err, &f) {
		return err
	}
	select {
	case <-m.p.Done():
	case <-time.After(endTime): // a connection ends before its process
		return err
	}
	if end := m.p.Err(); end != nil {
		return atoll.E("", "", atoll.ErrUnavailable, end)
	}
	return atoll.Errorf("", "", atoll.ErrUnavailable, "firecracker has ended")
}

// endTime is how long a process whose sockets are closed may take to be gone.
const endTime = time.Second

// launch starts Firecracker.
func (m *machine) launch(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(m.h.Dir, baseDir)); err != nil { // of one that was not told to end
		return err
	}
	cmd, err := m.command()
	if err != nil {
		return err
	}
	console, err := child.Console(m.h.Console)
	if err != nil {
		return err
	}
	m.console = console
	if info, err := os.Stat(m.h.Console); err == nil {
		m.begin = info.Size()
	}
	cmd.Stdout = console
	if m.p, err = child.Start(cmd); err != nil {
		return err
	}
	m.api = newClient(func(ctx context.Context) (net.Conn, error) { return connect(ctx, m.root, apiSock) })
	return m.answers(ctx)
}

// command makes the root directory, with all that the machine is made of, and returns
// what starts Firecracker in it.
func (m *machine) command() (*exec.Cmd, error) {
	program, err := m.d.program()
	if err != nil {
		return nil, err
	}
	args := []string{"--api-sock", apiSock, "--level", "Error"}
	if m.d.opts.Jail != nil {
		return m.jailed(program, args)
	}
	if err := os.Mkdir(m.root, 0o700); err != nil {
		return nil, err
	}
	for name, f := range m.files() {
		if err := os.Symlink(f.path, filepath.Join(m.root, name)); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(program, append([]string{"--id", m.h.ID}, args...)...)
	cmd.Dir = m.root
	cmd.Env = []string{} // ours is not its business
	return cmd, nil
}

// A file is one of the machine's.
type file struct {
	path     string
	readOnly bool
}

// files are those that belong into the root directory, by name.
func (m *machine) files() map[string]file {
	all := map[string]file{}
	if m.h.Snapshot != "" {
		all[stateFile] = file{filepath.Join(m.h.Snapshot, stateFile), true}
		all[memoryFile] = file{filepath.Join(m.h.Snapshot, memoryFile), true}
	} else {
		all[kernelFile] = file{m.h.Kernel, true}
		if m.h.Initrd != "" {
			all[initrdFile] = file{m.h.Initrd, true}
		}
	}
	for _, d := range m.h.Disks {
		all[diskPrefix+driveID(d.ID)] = file{d.Path, d.ReadOnly}
	}
	return all
}

// driveID is the name of a disk for Firecracker, which knows '_' only.
func driveID(id string) string { return strings.ReplaceAll(id, "-", "_") }

// answers waits until Firecracker answers.
func (m *machine) answers(ctx context.Context) error {
	for {
		var i instance
		err := m.api.do(ctx, http.MethodGet, "/", nil, &i)
		var f *fault
		switch {
		case err == nil && i.State == "Not started":
			return nil
		case err == nil:
			return atoll.Errorf("", "", atoll.ErrInternal, "firecracker is new, and says that its machine is %q", i.State)
		case errors.As(err, &f):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.p.Done():
			return m.why(ctx, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// configure says what the machine is made of, and turns it on.
func (m *machine) configure(ctx context.Context) error {
	if m.h.Snapshot != "" {
		return m.load(ctx)
	}
	type request struct {
		path string
		body any
	}
	boot := bootSource{Kernel: kernelFile, Args: m.cmdline()}
	if m.h.Initrd != "" {
		boot.Initrd = initrdFile
	}
	all := []request{
		{"/machine-config", machineConfig{CPUs: m.h.CPUs, Memory: int(m.h.Memory >> 20)}},
		{"/boot-source", boot},
		{"/entropy", entropy{}},
	}
	for i, d := range m.h.Disks {
		id := driveID(d.ID)
		all = append(all, request{"/drives/" + id, drive{ID: id, Path: diskPrefix + id, ReadOnly: d.ReadOnly, Root: i == 0 && m.rootDisk()}})
	}
	if m.h.CID != 0 {
		all = append(all, request{"/vsock", vsock{CID: m.h.CID, Path: vsockSock}})
	}
	all = append(all, request{"/actions", action{"InstanceStart"}})
	for _, r := range all {
		if err := m.api.do(ctx, http.MethodPut, r.path, r.body, nil); err != nil {
			return err
		}
	}
	return nil
}

// rootDisk reports whether the first disk is to be the root file system. Firecracker
// says so to the kernel then, and there can be one such disk.
func (m *machine) rootDisk() bool {
	for _, arg := range m.h.Cmdline {
		if strings.HasPrefix(arg, "root=") {
			return false
		}
	}
	return m.h.Initrd == ""
}

// base is what kernels have to be told on this hardware: where the console is, that a
// reboot is by the keyboard's controller, which ends the machine, and that there is no PCI.
const base = "console=ttyS0 reboot=k panic=1 pci=off"

// cmdline is what the kernel is told. Firecracker has no way to power off, and gives disks
// serial numbers of its own.
func (m *machine) cmdline() string {
	words := []string{base, vm.WordRestart}
	if disks := vm.WordDisks(m.h.Disks); disks != "" {
		words = append(words, disks)
	}
	return strings.Join(append(words, m.h.Cmdline...), " ")
}

// undo frees all that the machine holds.
func (m *machine) undo() {
	if m.p != nil {
		m.p.Kill()
	}
	if m.api != nil {
		m.api.close()
	}
	if m.console != nil {
		_ = m.console.Close()
	}
	m.unjail()
	_ = os.RemoveAll(filepath.Join(m.h.Dir, baseDir)) // what is left of it is removed with Dir
}

// running returns the hypervisor's process. Kinds: ErrStopped.
func (m *machine) running(op string) (*child.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.p == nil {
		return nil, atoll.Errorf(op, m.h.ID, atoll.ErrStopped, "the machine is not started")
	}
	return m.p, nil
}

// How a guest is dialled.
const (
	pause     = 100 * time.Millisecond // between attempts
	patience  = 5 * time.Second        // with one: a guest that boots may have lost it
	noAnswers = "nothing listens on port %d of the guest"
)

// Dial implements vm.Machine. Firecracker hangs up where nothing listens, which may be
// because the guest is still booting: until it has taken a first connection that is
// tried again.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	p, err := m.running("dial")
	if err != nil {
		return nil, err
	}
	if m.h.CID == 0 {
		return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnsupported, "the machine has no vsock: give it a CID")
	}
	fail := func(kind atoll.Kind, err error) (net.Conn, error) { return nil, atoll.E("dial", m.h.ID, kind, err) }
	for refused := false; ; {
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
		hungUp := errors.Is(err, mux.ErrRefused)
		refused = refused || hungUp
		switch {
		case ctx.Err() != nil && !refused:
			return fail(atoll.KindOf(ctx.Err()), ctx.Err())
		case ctx.Err() != nil || hungUp && m.up.Load():
			return nil, atoll.Errorf("dial", m.h.ID, atoll.ErrUnavailable, noAnswers, port)
		case !hungUp && !passing(err):
			return fail(atoll.ErrInternal, err)
		}
		select {
		case <-ctx.Done():
		case <-p.Done():
		case <-time.After(pause):
		}
	}
}

// attempt connects to a port once.
func (m *machine) attempt(ctx context.Context, port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := connect(ctx, m.root, vsockSock)
	if err != nil {
		return nil, err
	}
	if err := mux.Connect(ctx, conn, port); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// passing reports whether err may be otherwise the next time.
func passing(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotThere)
}

// Stop implements vm.Machine: guests of ours are asked on their port, others are sent
// Ctrl+Alt+Del, for which the kernel has to have a keyboard. There is none but on x86.
func (m *machine) Stop(ctx context.Context) error {
	p, err := m.running("stop")
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
		return atoll.Errorf("stop", m.h.ID, atoll.ErrConflict, "the machine is paused: resume it first")
	case !keyboard && m.h.CID == 0:
		return atoll.Errorf("stop", m.h.ID, atoll.ErrUnsupported, "the guest cannot be asked to power off on %s without a vsock: give the machine a CID, or kill it", runtime.GOARCH)
	}
	m.asked.Store(true)
	if keyboard {
		if err := m.ask(ctx, "stop", http.MethodPut, "/actions", action{"SendCtrlAltDel"}); err != nil {
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
	if m.h.CID != 0 {
		asked.Go(func() { _ = vm.PowerOff(asking, m) }) // that it has worked is seen below
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return atoll.E("stop", m.h.ID, atoll.KindOf(ctx.Err()), ctx.Err())
	}
}

// ask makes a request of a machine that runs.
func (m *machine) ask(ctx context.Context, op, method, path string, body any) error {
	if err := m.api.do(ctx, method, path, body, nil); err != nil {
		err = m.why(ctx, err)
		return atoll.E(op, m.h.ID, atoll.KindOf(err), err)
	}
	return nil
}

// Kill implements vm.Machine.
func (m *machine) Kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.p == nil || m.killed {
		return nil
	}
	select {
	case <-m.p.Done():
	default:
		m.p.Kill()
		m.killed = true // and not ended by itself
	}
	m.undo()
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
	if m.killed {
		return nil
	}
	err = p.Err()
	if err == nil && !m.asked.Load() { // for Firecracker a guest that panics ends as others do
		if words := vm.LastWords(m.h.Console, m.begin); strings.HasPrefix(words, "kernel panic") {
			err = errors.New("the guest has crashed: " + words)
		}
	}
	if err == nil {
		return nil
	}
	return atoll.E("wait", m.h.ID, atoll.ErrInternal, err)
}

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.setPaused(ctx, "pause", true) }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.setPaused(ctx, "resume", false) }

func (m *machine) setPaused(ctx context.Context, op string, paused bool) error {
	if _, err := m.running(op); err != nil {
		return err
	}
	want := state{"Resumed"}
	if paused {
		want.State = "Paused"
	}
	if err := m.ask(ctx, op, http.MethodPatch, "/vm", want); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = paused
	return nil
}

var _ vm.Machine = (*machine)(nil)
