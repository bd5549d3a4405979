//go:build linux

// Package keeper implements the engine of package supervisor over the kernel's own walls, in the process that owns one sandbox. The
// sandbox is a first process in namespaces of its own, see package pid1, which starts all commands. This process holds their
// output, their terminals and the network; when it dies, the kernel ends the first process, and with that all others.
//
// Every binary that imports this package can serve as supervisor, and as the guest inside a sandbox: it takes over in init.
package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
	"github.com/seed46cd37a8/atoll/provider/native/internal/plan"
)

func init() {
	supervisor.TakeOver(supervisor.Kind{Argv0: plan.SupervisorArgv0, Isolation: atoll.IsolationContainer, Prepare: prepareParts, New: newEngine})
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case plan.ProbeArgv0:
		os.Exit(runProbe())
	case guestArgv0:
		os.Exit(runGuest(os.Args[1:]))
	}
}

// An engine implements supervisor.Engine over the first process that this process owns.
type engine struct {
	sandbox *supervisor.Sandbox
	job     *supervisor.Job
	plan    plan.Plan
	table   *process.Table
	files   *sandboxFiles

	inside    *cgroup.Inside // the cgroup of the processes inside
	ids       *ids
	network   *network
	trustVars []string // variables with which programs trust the gateway
	root      *root
	disk      *diskWatch

	init   *pid1.Init
	pid    int           // of the first process, in this process's namespace
	pidfd  *os.File      // of the first process
	top    *os.File      // the root directory as the inside sees it
	proc   *os.File      // /proc as the inside sees it
	exited chan struct{} // closed when all processes inside have ended
	status unix.WaitStatus

	covers     covers
	refreshing atomic.Bool // refreshCovers runs

	freezing sync.Mutex // held while processes inside are being frozen, thawed or copied
	frozen   atomic.Bool
	oomKills atomic.Int64 // those that have been reported as the reason of an exit
}

func newEngine(b *supervisor.Sandbox, _ io.Writer) (supervisor.Engine, error) {
	e := &engine{sandbox: b, job: b.Job}
	if err := json.Unmarshal(b.Job.Engine, &e.plan); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	if b.Job.Spec.Network.Mode == atoll.NetworkNone {
		// This process moves no packets, and one thread at a time is enough for all else: a second one is mostly woken for nothing.
		runtime.GOMAXPROCS(1)
	}
	e.makeTable()
	e.files = newFiles(e)
	return e, nil
}

// makeTable makes the table of processes. The output of those that have ended takes only a part of the sandbox's memory, which this
// process shares.
func (e *engine) makeTable() {
	table := process.NewTable()
	if limit := int64(e.job.Spec.Resources.Memory); limit > 0 {
		table.EndedOutput = min(limit/16, process.DefaultEndedOutput)
	}
	table.OpenTerminal = e.openTerminal
	e.table = table
}

// Name implements supervisor.Engine.
func (e *engine) Name() string { return "the sandbox's first process" }

// Exited implements supervisor.Engine.
func (e *engine) Exited() <-chan struct{} {
	if e.init == nil {
		return nil
	}
	return e.exited
}

// hasEnded reports whether all processes inside have ended.
func (e *engine) hasEnded() bool {
	select {
	case <-e.exited:
		return true
	default:
		return false
	}
}

// DeathReason implements supervisor.Engine.
func (e *engine) DeathReason() string {
	if e.hasEnded() && e.status.Signaled() {
		return "killed by signal " + e.status.Signal().String()
	}
	return ""
}

// lostTime is the time between the break of the connection to the first process and its end.
const lostTime = time.Second

// Lost implements supervisor.Engine.
func (e *engine) Lost(err error) bool {
	if !errors.Is(err, pid1.ErrLost) {
		return e.hasEnded()
	}
	select {
	case <-e.exited:
		return true
	case <-time.After(lostTime):
		return false
	}
}

// Process implements supervisor.Engine.
func (e *engine) Process(_ context.Context, id string) (atoll.Process, error) { return e.table.Get(id) }

// Processes implements supervisor.Engine.
func (e *engine) Processes(context.Context) ([]atoll.ProcessStatus, error) {
	return e.table.List(), nil
}

// Running implements supervisor.Engine.
func (e *engine) Running(context.Context) (int, error) {
	if n := e.table.Running(); n > 0 {
		return n, nil
	}
	n, err := e.countProcesses()
	return n - e.files.guestCount(), err
}

// Files implements supervisor.Engine.
func (e *engine) Files() atoll.FS { return e.files }

// Usage implements supervisor.Engine.
func (e *engine) Usage(context.Context) (atoll.Usage, error) {
	n, err := e.countProcesses()
	if err != nil {
		return atoll.Usage{}, err
	}
	u := atoll.Usage{Processes: n}
	for _, pid := range e.hostPIDs() {
		memory, cpu := measureProcess(pid)
		u.Memory += atoll.Bytes(memory)
		u.CPU += atoll.Duration(cpu)
	}
	return u, nil
}

// Terminate implements supervisor.Engine.
func (e *engine) Terminate(grace time.Duration) error {
	if e.Frozen() { // programs have to run to end
		if err := e.Resume(context.Background()); err != nil {
			return err
		}
	}
	if grace == 0 {
		return nil
	}
	if err := e.init.Signal(-1, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		n, err := e.countProcesses()
		if err != nil || n == 0 && e.init.Running() == 0 { // their exits are known, too
			return nil
		}
	}
	return nil
}

// Keep implements supervisor.Engine: the changes of the root file system are in files of the host already, and the kernel still has
// some of them in memory.
func (e *engine) Keep() error {
	if e.job.Spec.ReadOnlyRoot {
		return nil
	}
	return e.root.syncChanges()
}

// Kill implements supervisor.Engine.
func (e *engine) Kill() {
	_ = e.inside.Thaw()                                               // frozen processes do not end
	_ = unix.PidfdSendSignal(int(e.pidfd.Fd()), unix.SIGKILL, nil, 0) // fails when it has ended
}

// Destroy implements supervisor.Engine.
func (e *engine) Destroy() error {
	e.Kill()
	<-e.exited
	e.init.Close()
	e.files.closeGuest()
	err := errors.Join(e.table.Close(), e.network.closeNetwork(), e.top.Close(), e.proc.Close())
	e.ids.releaseIDs()
	e.root.closeRoot()
	return err
}

// SaveMain implements supervisor.Engine.
func (e *engine) SaveMain(path string) error { return e.table.Save(path, atoll.MainProcess) }

// Unmount implements supervisor.Engine.
func (e *engine) Unmount() error {
	base := filepath.Join(e.job.Dir, rootName)
	if err := unix.Unmount(base, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", base, err)
	}
	return nil
}

var _ supervisor.Engine = (*engine)(nil)
