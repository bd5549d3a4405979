//go:build linux

package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/sandboxnet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/native/internal/landlock"
	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
	"github.com/seed46cd37a8/atoll/provider/native/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/native/internal/seccomp"
)

// startSteps are the steps of a start, those of plan.EngineSteps.
var startSteps = [len(plan.EngineSteps)]func(e *engine, ctx context.Context, undo *supervisor.Undo) error{
	(*engine).makeIDs,
	(*engine).makeNetwork,
	(*engine).makeRoot,
	(*engine).mountAll,
	(*engine).startInit,
	func(e *engine, _ context.Context, _ *supervisor.Undo) error { return e.chownDataVolume() },
	func(e *engine, _ context.Context, _ *supervisor.Undo) error { return e.makeWorkdir() },
}

// Steps implements supervisor.Engine.
func (e *engine) Steps() []supervisor.Step {
	all := make([]supervisor.Step, len(startSteps))
	for i, do := range startSteps {
		name := plan.EngineSteps[i]
		all[i] = supervisor.Step{Name: name, Do: func(ctx context.Context, undo *supervisor.Undo) error {
			if e.plan.Halt == name { // for a test, which continues or kills this process
				_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
			}
			return do(e, ctx, undo)
		}}
	}
	return all
}

func (e *engine) makeIDs(_ context.Context, undo *supervisor.Undo) (err error) {
	if e.inside, err = e.sandbox.Group.MakeInside(e.job.Spec.Resources.Processes); err != nil {
		return err
	}
	if e.ids, ahead.ids = ahead.ids, nil; e.ids == nil {
		e.ids, err = newIDs()
	}
	if err == nil {
		undo.Add(e.ids.releaseIDs)
	}
	return err
}

// ahead has parts of a sandbox that were made before its job arrived. The sandbox takes them. A part is nil if there is none.
var ahead struct {
	ids     *ids
	network *os.File // a network namespace without a network
}

// prepareParts makes the parts of ahead. If one cannot be made, the start of the sandbox tries again, and reports why.
func prepareParts() {
	ahead.ids, _ = newIDs()
	ahead.network, _ = newNetworkNamespace()
}

func (e *engine) makeNetwork(_ context.Context, undo *supervisor.Undo) (err error) {
	if e.network, err = newNetwork(e.sandbox); err == nil {
		undo.Add(func() { _ = e.network.closeNetwork() })
	}
	return err
}

// makeRoot needs no undoing: all its mounts are in this process's own namespace.
func (e *engine) makeRoot(ctx context.Context, undo *supervisor.Undo) (err error) {
	e.root = &root{dir: filepath.Join(e.job.Dir, rootName), ids: e.ids}
	undo.Add(e.root.closeRoot)
	changes := filepath.Join(e.job.Dir, changesName)
	if e.job.Spec.ReadOnlyRoot {
		changes = ""
	} else if err := e.restoreChanges(ctx, changes); err != nil {
		return err
	}
	_, missing := os.Lstat(changes)
	if changes != "" {
		if err := e.makeChanges(changes); err != nil {
			return err
		}
	}
	if err := e.root.layOut(e.job.Record.Image, changes, e.plan.HostPaths); err != nil {
		return err
	}
	if e.disk, err = e.newDiskWatch(missing != nil); err != nil {
		return err
	}
	if err := e.root.writeFiles(e.etcFiles()); err != nil {
		return err
	}
	files := sandboxnet.RootFiles{Root: e.root.mergedPath(), Dir: filepath.Join(e.job.Run, "trust"), Act: e.ids.actInside}
	e.trustVars, err = sandboxnet.InstallTrust(e.sandbox, e.network.authority, files)
	return err
}

// etcFiles returns the files of /etc that describe the network from inside.
func (e *engine) etcFiles() map[string]string {
	hostname := hostName(&e.job.Spec)
	files := map[string]string{
		"hostname": hostname + "\n",
		"hosts":    "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
	}
	if e.network.resolver != "" {
		files["resolv.conf"] = "nameserver " + e.network.resolver + "\n"
	}
	return files
}

// hostName returns the host name of a sandbox: its name, else the beginning of its id.
func hostName(spec *atoll.Spec) string {
	if spec.Name != "" {
		return strings.ReplaceAll(spec.Name[:min(len(spec.Name), 64)], "_", "-")
	}
	return spec.ID[:12]
}

// mountAll mounts what is not the root file system: devices, the system's own files, volumes.
func (e *engine) mountAll(context.Context, *supervisor.Undo) error {
	for _, dir := range []string{"/proc", "/tmp", "/dev", "/sys"} {
		fd, err := e.root.openTarget(dir, false)
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	if err := errors.Join(e.root.mountDevices(e.plan.Nested), e.root.bindDevices()); err != nil {
		return err
	}
	if err := e.root.mountSys(e.cpuCount()); err != nil {
		return err
	}
	for _, m := range e.job.Mounts {
		if err := e.mountOne(m); err != nil {
			return mountError(e.sandbox.ID(), m.Target, err)
		}
	}
	if e.job.Spec.ReadOnlyRoot {
		if err := e.root.makeReadOnly(); err != nil {
			return err
		}
	}
	return e.makeCovers()
}

// defaultTmpfs is the size of a tmpfs without one.
const defaultTmpfs = 64 << 20

func (e *engine) mountOne(m supervisor.Mount) error {
	file := false
	if m.Source != "" {
		info, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		file = !info.IsDir()
	}
	if file && m.Target == path.Clean(e.job.Spec.Workdir) {
		return fmt.Errorf("processes start there, but %s is a file", m.Source)
	}
	target, err := e.root.openTarget(m.Target, file)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if m.Source == "" {
		size := cmp.Or(int64(m.Size), defaultTmpfs)
		return mountTmpfs(fmt.Sprintf("/proc/self/fd/%d", target), e.ids, 0, "mode=1777", fmt.Sprintf("size=%d", size))
	}
	var st unix.Stat_t
	if err := unix.Fstat(target, &st); err != nil {
		return err
	}
	if dir := st.Mode&unix.S_IFMT == unix.S_IFDIR; dir == file {
		kinds := map[bool]string{true: "a directory", false: "a file"}
		return fmt.Errorf("%s is %s, but %s is %s", m.Source, kinds[!file], m.Target, kinds[dir])
	}
	return bind{readOnly: m.ReadOnly, deep: true, owners: e.ids}.mountAt(m.Source, target)
}

// cpuCount returns the number of processors that programs see: those that their share of time needs.
func (e *engine) cpuCount() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return runtime.NumCPU()
	}
	n := set.Count()
	if limit := e.job.Spec.Resources.CPUs; limit > 0 && e.job.Caps.CPULimit {
		n = min(n, max(int(limit+0.999), 1))
	}
	return n
}

// startInit starts the first process.
func (e *engine) startInit(_ context.Context, undo *supervisor.Undo) error {
	b, err := e.newBox()
	if err != nil {
		return err
	}
	defer b.closeFiles()
	line, err := pid1.NewLine()
	if err != nil {
		return err
	}
	if e.pid, err = b.startProcess(line); err != nil {
		line.Close()
		return fmt.Errorf("first process: %w", err)
	}
	exited := make(chan struct{})
	e.exited = exited
	go func() {
		e.status = waitProcess(e.pid)
		close(exited)
	}()
	if err := e.openInside(); err != nil {
		_ = unix.Kill(e.pid, unix.SIGKILL) // the goroutine waits for it
		line.Close()
		<-exited
		return err
	}
	if e.init, err = line.Connect(e.resumeInit); err != nil {
		return err
	}
	undo.Add(func() { _ = e.Destroy() })
	// A process that is about to execute a program inside has this process's memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if e.job.Ahead {
		return e.enterHostname()
	}
	e.sandbox.Watch()
	return nil
}

// openInside opens what this process needs of the first process.
func (e *engine) openInside() (err error) {
	fd, err := unix.PidfdOpen(e.pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	e.pidfd = os.NewFile(uintptr(fd), "first process")
	top := "/proc/" + strconv.Itoa(e.pid) + "/root"
	if e.top, err = openPath(top); err != nil {
		return err
	}
	e.proc, err = openPath(top + "/proc")
	return err
}

func openPath(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// maxFiles is the hard limit of open files of a process; the soft one is as on Linux, since some programs close all descriptors up
// to it.
const maxFiles, softFiles = 1 << 20, 1024

// newBox returns the walls of the sandbox.
func (e *engine) newBox() (_ *box, err error) {
	spec := &e.job.Spec
	b := &box{
		ids: e.ids, group: e.inside, network: e.network.namespace, hostname: hostName(spec),
		groups: e.ids.count > 1, filters: [][]unix.SockFilter{seccomp.Program(seccomp.Options{Nested: e.plan.Nested})},
		shared: sharedMemory(spec.Resources.Memory), user: userLimits(e.plan.Nested), nested: e.plan.Nested, covers: e.covers.listNames(),
		fixed: filterExisting(fixedPaths), masked: filterExisting(maskedPaths),
	}
	defer func() {
		if err != nil {
			b.closeFiles()
		}
	}()
	if e.job.WritesHostFiles() {
		filter, err := supervisor.HostFilesFilter(false)
		if err != nil {
			return nil, err
		}
		b.filters = append(b.filters, filter)
	}
	if b.root, err = openPath(e.root.mergedPath()); err != nil {
		return nil, err
	}
	if n := uint64(spec.Resources.Processes); spec.Resources.Processes > 0 {
		b.procs = rlimit{n, n}
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, os.NewSyscallError("getrlimit", err)
	}
	b.files = rlimit{min(softFiles, files.Max), min(maxFiles, files.Max)}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil, os.NewSyscallError("clock_gettime", err)
	}
	b.uptime = now.Sec
	b.cpus = chooseCPUs(e.cpuCount())
	if abi := landlock.ABI(); abi > 0 && !e.plan.Nested { // it denies all mounts
		self, err := os.Open("/proc/self/exe") // the guest
		if err != nil {
			return nil, err
		}
		defer self.Close()
		if b.ruleset, err = landlock.NewRuleset(abi, int(b.root.Fd()), int(self.Fd())); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *box) closeFiles() {
	for _, f := range []*os.File{b.root, b.ruleset} {
		_ = f.Close() // which a nil file survives
	}
}

// chownDataVolume gives a data volume that still belongs to root to the default user; a new
// one with all files that were written to it before the first start.
func (e *engine) chownDataVolume() error {
	cred, err := e.resolveUser(e.defaultUser())
	if err != nil {
		return atoll.E("start", e.sandbox.ID(), atoll.ErrInvalid, err)
	}
	return e.sandbox.ChownVolume(int(cred.UID), int(cred.GID))
}
