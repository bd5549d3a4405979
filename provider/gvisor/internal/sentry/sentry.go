//go:build linux

package sentry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/boot/procfs"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/pid1"
)

// A sentry is one running gVisor container. All calls of gVisor's packages for it go
// through this type: they move the calling process between cgroups and namespaces, allow
// one waiter per process, and are not safe for concurrent use where they change state.
type sentry struct {
	conf *config.Config
	c    *container.Container
	sb   *sandbox.Sandbox // c.Sandbox, which c forgets when it is destroyed

	mu     sync.RWMutex // write: pause, resume, snapshot, destroy; read: all else
	paused atomic.Bool  // changed with mu held

	init    *pid1.Init    // the first process inside
	process *os.File      // a pidfd: it never refers to another process
	exited  chan struct{} // closed when the sentry's process has ended
}

// startSentry starts the sandbox that the bundle in job.Dir describes. Call it on the main
// thread: the kernel kills the sentry and the gofer when the thread that started them ends.
func startSentry(job *job, root, netns string) (*sentry, error) {
	conf, err := runscConfig(job, netns)
	if err != nil {
		return nil, err
	}
	saved, err := readProcesses(job.Snapshot)
	if err != nil {
		return nil, err
	}
	spec := ociSpec(job, root, netns)
	if err := writeBundle(job.Dir, spec); err != nil {
		return nil, err
	}
	s := &sentry{conf: conf, exited: make(chan struct{})}
	init, theirs, err := connectInit(saved.Init, s.resumeInit)
	if err != nil {
		return nil, err
	}
	c, err := container.New(conf, container.Args{
		ID: job.Spec.ID, Spec: spec, BundleDir: job.Dir, Attached: true, PassFiles: theirs,
	})
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		init.Close()
		return nil, err
	}
	fd, err := unix.PidfdOpen(c.Sandbox.Getpid(), 0)
	if err != nil {
		init.Close()
		return nil, errors.Join(fmt.Errorf("hold the sentry: %w", err), c.Destroy())
	}
	s.c, s.sb, s.init, s.process = c, c.Sandbox, init, os.NewFile(uintptr(fd), "sentry")
	if job.Snapshot != "" {
		err = explainRestore(c.Restore(conf, job.Snapshot, false, false, nil))
	} else {
		err = c.Start(conf)
	}
	if err == nil {
		err = s.setLimits(job)
	}
	if err != nil {
		err = errors.Join(err, c.Destroy(), s.process.Close())
		init.Close()
		return nil, err
	}
	go s.watchExit()
	return s, nil
}

// explainRestore adds to an error of a restore what to do, if that is known. gVisor reports it as text only.
func explainRestore(err error) error {
	if err != nil && strings.Contains(err.Error(), unix.ENOENT.Error()) {
		return atoll.Errorf("create", "", atoll.ErrConflict, "a durable process uses a file that the snapshot does not have, such as one of /work: take the snapshot with /work: %w", err)
	}
	return err
}

// patience is the number of seconds after which a child that the first process waits for is ended.
const patience = 10

// resumeInit lets the first process continue, which has not answered for a number of seconds: gVisor, unlike Linux, lets
// root inside stop it. In the end it kills a child that executes nothing, such as a program with a named pipe as its
// interpreter, because the first process waits for that.
func (s *sentry) resumeInit(seconds int) {
	_ = s.signalProcess(1, atoll.SIGCONT) // fails when the sentry has ended
	if seconds < patience {
		return
	}
	s.mu.RLock()
	list, err := s.sb.Processes(s.c.ID)
	s.mu.RUnlock()
	if err != nil {
		return
	}
	for _, p := range list {
		if p.PPID == 1 && p.Cmd == initName {
			_ = s.signalProcess(int32(p.PID), atoll.SIGKILL)
		}
	}
}

// watchExit closes exited when the sentry has ended, for whatever reason.
func (s *sentry) watchExit() {
	_, _ = s.sb.Wait(s.c.ID) // the cgroup and the log say how it ended
	close(s.exited)
}

// execProgram starts a program and returns its PID in the sandbox. The sandbox decides how
// long that takes: gVisor waits with a program that is a named pipe until somebody writes
// to it. ctx bounds the wait; a program that starts later is killed.
func (s *sentry) execProgram(ctx context.Context, args *control.ExecArgs) (int32, error) {
	type outcome struct {
		pid int32
		err error
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	done := make(chan outcome, 1)
	go func() {
		pid, err := s.c.Execute(s.conf, args)
		done <- outcome{pid, err}
	}()
	select {
	case o := <-done:
		return o.pid, o.err
	case <-ctx.Done():
	}
	go func() {
		if o := <-done; o.err == nil {
			_ = s.signalProcess(o.pid, atoll.SIGKILL) // it may have ended
			_, _ = s.waitProgram(o.pid)
		}
	}()
	return 0, ctx.Err()
}

// waitProgram returns the wait status of the program with that PID, started by execProgram.
// Call it once. It returns an error if the sentry ends first.
func (s *sentry) waitProgram(pid int32) (syscall.WaitStatus, error) {
	status, err := s.sb.WaitPID(s.c.ID, pid)
	return syscall.WaitStatus(status), err
}

func (s *sentry) signalProcess(pid int32, sig atoll.Signal) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.c.SignalProcess(unix.Signal(sig), pid)
}

// signalSession signals the processes of a session: first its leader, which must not see the others end.
func (s *sentry) signalSession(leader int32, sig atoll.Signal) error {
	procs, err := s.dumpProcesses()
	if err == nil {
		err = s.signalProcess(leader, sig)
	}
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.sid == leader && p.pid != leader {
			_ = s.signalProcess(p.pid, sig) // it may have ended
		}
	}
	return nil
}

// signalAll signals every process; the first one blocks all signals except SIGKILL.
func (s *sentry) signalAll(sig atoll.Signal) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.c.SignalContainer(unix.Signal(sig), true)
}

// pause freezes everything, unless wanted returns false once it is done.
func (s *sentry) pause(wanted func() bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused.Load() {
		return nil
	}
	err := s.c.Pause()
	s.paused.Store(err == nil)
	if err == nil && !wanted() {
		err = s.c.Resume()
		s.paused.Store(err != nil)
	}
	return err
}

func (s *sentry) resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.paused.Load() {
		return nil
	}
	err := s.c.Resume()
	s.paused.Store(err != nil)
	return err
}

// isFrozen reports whether the sandbox is paused, or a pause or a snapshot is in progress.
func (s *sentry) isFrozen() bool {
	if !s.mu.TryRLock() {
		return true
	}
	defer s.mu.RUnlock()
	return s.paused.Load()
}

// haltTime is the time within which the processes inside stop, unless the host keeps them waiting.
const haltTime = 200 * time.Millisecond

// halt stops all processes inside, for a moment and whether or not the sandbox is paused. It gives
// up waiting for that after haltTime. Call resume.
func (s *sentry) halt() (resume func()) {
	done := make(chan error, 1)
	go func() { done <- s.sb.Pause(s.c.ID) }()
	undo := func(err error) {
		if err == nil {
			_ = s.sb.Resume(s.c.ID) // fails when the sentry has ended
		}
	}
	select {
	case err := <-done:
		return func() { undo(err) }
	case <-time.After(haltTime):
		return func() { go func() { undo(<-done) }() }
	}
}

// createMemoryFile returns an empty file in memory.
func createMemoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("file", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readFile returns a file of the sandbox's file system, at most limit bytes. If it is a
// named pipe, it waits until ctx ends.
func (s *sentry) readFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, err := createMemoryFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	done := make(chan error, 1)
	go func() { done <- s.sb.ReadFile(s.c.ID, name, 0, limit, f) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, info.Size())
	_, err = f.ReadAt(data, 0)
	return data, err
}

// dumpProcesses returns every process inside with its environment, which can be large.
func (s *sentry) dumpProcesses() ([]processInfo, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	dump, err := s.sb.ProcfsDump()
	if err != nil {
		return nil, err
	}
	procs := make([]processInfo, 0, len(dump))
	for _, d := range dump {
		procs = append(procs, processInfo{
			pid: d.Status.PID, ppid: d.Status.PPID, sid: d.Stat.SID, env: d.Env,
		})
	}
	return procs, nil
}

// measureProcesses returns every process inside with its name and memory.
func (s *sentry) measureProcesses() ([]processInfo, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	dump, err := s.sb.ProcfsDump()
	if err != nil {
		return nil, err
	}
	list, err := s.sb.Processes(s.c.ID)
	if err != nil {
		return nil, err
	}
	procs := make([]processInfo, 0, len(list))
	for _, p := range list {
		info := processInfo{pid: int32(p.PID), ppid: int32(p.PPID), name: p.Cmd}
		i := slices.IndexFunc(dump, func(d procfs.ProcessProcfsDump) bool { return d.Status.PID == info.pid })
		if info.leaderless = i < 0; !info.leaderless {
			info.memory = int64(dump[i].Status.VMRSS) << 10
		}
		info.ended = info.leaderless && len(p.Threads) < 2
		procs = append(procs, info)
	}
	return procs, nil
}

// listProcesses returns every process inside with its parent only, which is cheap, however
// much memory the processes hold.
func (s *sentry) listProcesses() ([]processInfo, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list, err := s.sb.Processes(s.c.ID)
	if err != nil {
		return nil, err
	}
	procs := make([]processInfo, 0, len(list))
	for _, p := range list {
		procs = append(procs, processInfo{pid: int32(p.PID), ppid: int32(p.PPID)})
	}
	return procs, nil
}

// countProcesses returns the number of processes inside.
func (s *sentry) countProcesses() (int, error) {
	procs, err := s.listProcesses()
	return len(procs), err
}

// kill ends the sentry, even if it hangs, and with it every call to it that is in progress.
func (s *sentry) kill() {
	_ = unix.PidfdSendSignal(int(s.process.Fd()), unix.SIGKILL, nil, 0) // fails when it has ended
}

// isLost reports whether err, of a call to the sentry, is due to the sentry's end. It waits
// for a moment, because the connection breaks before the end is visible.
func (s *sentry) isLost(err error) bool {
	broken := slices.ContainsFunc([]error{io.EOF, unix.ECONNRESET, unix.EPIPE, unix.ECONNREFUSED}, func(e error) bool {
		return errors.Is(err, e) || strings.HasSuffix(err.Error(), e.Error()) // gVisor's errors are text
	})
	if !broken {
		return false
	}
	select {
	case <-s.exited:
		return true
	case <-time.After(time.Second):
		return false
	}
}

// destroy kills everything and frees what gVisor holds on the host.
func (s *sentry) destroy() error {
	s.kill() // before taking the lock, which a call to a hanging sentry would hold for ever
	s.init.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.c.Destroy()
	select {
	case <-s.exited:
	case <-time.After(atoll.DefaultStopGrace):
		err = errors.Join(err, errors.New("the sentry did not end"))
	}
	return err
}

// A processInfo describes a process inside.
type processInfo struct {
	pid, ppid, sid int32
	env            []string
	name           string
	memory         int64 // bytes
	leaderless     bool  // its first thread has ended, so that the sentry does not know its memory
	ended          bool  // all its threads have, and its parent has not yet asked for its exit
}

// isReparented reports whether the process has lost its parent, so that parentage does not
// tell who started it.
func isReparented(p processInfo) bool { return p.ppid == 1 }

// processEnv marks the processes that one Exec started, and their descendants, so that they
// are found when their parents have gone.
const processEnv = "ATOLL_PROCESS"

// findDescendants returns the PIDs of the program with that PID and mark and of all that it
// started: by parentage, and by the mark in the environment.
func findDescendants(procs []processInfo, pid int32, mark string) []int32 {
	ours := map[int32]bool{pid: true}
	for _, p := range procs {
		for _, kv := range p.env {
			if kv == processEnv+"="+mark {
				ours[p.pid] = true
			}
		}
	}
	for grew := true; grew; {
		grew = false
		for _, p := range procs {
			if !ours[p.pid] && p.pid != 1 && (ours[p.ppid] || p.sid == pid) {
				ours[p.pid] = true
				grew = true
			}
		}
	}
	var pids []int32
	for _, p := range procs {
		if ours[p.pid] && p.pid != 1 && p.pid != pid {
			pids = append(pids, p.pid)
		}
	}
	if slices.ContainsFunc(procs, func(p processInfo) bool { return p.pid == pid }) {
		pids = slices.Insert(pids, 0, pid) // before its children: it must not see them die, and exit by itself
	}
	return pids
}

// killTimeout is the time for which killTree chases processes that start others.
const killTimeout = 5 * time.Second

// killTree kills the program with that PID and all that it started. It repeats until
// nothing is left, because the processes can start more meanwhile.
func (s *sentry) killTree(pid int32, mark string) error {
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		procs, err := s.listProcesses()
		if err != nil {
			return err
		}
		pids := findDescendants(procs, pid, mark)
		if len(pids) == 0 && slices.ContainsFunc(procs, isReparented) {
			if procs, err = s.dumpProcesses(); err != nil {
				return err
			}
			pids = findDescendants(procs, pid, mark)
		}
		if len(pids) == 0 {
			return nil
		}
		for _, p := range pids {
			if err := s.signalProcess(p, atoll.SIGKILL); err != nil && !strings.Contains(err.Error(), "no such process") {
				return err
			}
		}
	}
	return fmt.Errorf("processes of %s keep coming back", mark)
}
