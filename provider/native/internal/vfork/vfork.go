//go:build linux

// Package vfork starts processes without a copy of this one's memory, however much that is: the child shares it, and
// executes a list of system calls, the last of which executes a program. Meanwhile the calling thread waits. Nothing else can
// make a child that enters namespaces as fast: os/exec copies the page tables of this process for it.
package vfork

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

const (
	wordsSize = 16 << 10
	stepsSize = 64 << 10
	bytesSize = 176 << 10
)

// A Script is a list of system calls for a child. Close it.
type Script struct {
	syslist.List
	memory []byte
	steps  []named // the calls that must not fail
	exit   *syslist.Step
}

// A named call must not fail.
type named struct {
	*syslist.Step
	name   string
	clones bool
	second *syslist.Step // a call to try if this one fails
}

// New returns an empty script. Its place is fixed, so that its calls can refer to what it contains.
func New() (*Script, error) {
	memory, err := unix.Mmap(-1, 0, wordsSize+stepsSize+bytesSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS) // also with a clone that shares no other memory
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	s := &Script{memory: memory}
	s.Place = syslist.Place{Words: base, Steps: base + wordsSize, Bytes: base + wordsSize + stepsSize, End: base + uint64(len(memory))}
	s.exit = s.PrepareCall(unix.SYS_EXIT_GROUP, 0)
	return s, nil
}

// Close frees the script.
func (s *Script) Close() error { return unix.Munmap(s.memory) }

// Do adds a call that must not fail: if it does, the child exits, and Run returns an error with that name.
func (s *Script) Do(name string, nr uintptr, args ...uint64) *syslist.Step {
	step := s.AddCall(nr, args...)
	step.OnNegative = s.exit
	s.steps = append(s.steps, named{Step: step, name: name})
	return step
}

// Try adds a call that may fail.
func (s *Script) Try(nr uintptr, args ...uint64) { s.AddCall(nr, args...) }

// Clone adds a call that clones the child: the clone executes the rest of the script, and the child exits when the clone has
// executed a program or has ended. The clone is a child of this process, too. It gets a copy of this process's memory only where
// it must: before Linux 6.2, a process that has left its time namespace cannot share its memory.
func (s *Script) Clone(name string, flags uint64) {
	flags |= unix.CLONE_PARENT | unix.CLONE_VFORK | uint64(unix.SIGCHLD)
	shared, copied := s.AddCall(unix.SYS_CLONE, flags|unix.CLONE_VM), s.AddCall(unix.SYS_CLONE, flags)
	shared.OnPositive, shared.OnZero, shared.OnNegative = s.exit, s.AddCall(unix.SYS_GETPID), copied
	copied.OnPositive, copied.OnNegative = s.exit, s.exit
	s.steps = append(s.steps, named{shared, name, true, copied}, named{copied, name, true, nil})
}

// Run starts a child that executes the script, the last call of which must execute a program. It returns the PID of the
// process that has executed it, a child of this one, for which the caller has to wait. If a call fails, Run returns a
// *syslist.Error, and no process is left. The thread that calls Run is the one whose end PR_SET_PDEATHSIG reports. The child is
// cloned into the cgroup of v2 that has the directory group, unless that is nil.
func (s *Script) Run(group *os.File) (pid int, err error) {
	s.Steps = append(s.Steps, s.exit)
	parts, err := s.Encode(s.Place.Steps)
	if err != nil {
		return 0, fmt.Errorf("script: %w", err)
	}
	for _, p := range parts {
		copy(s.memory[p.Address-s.Place.Words:], p.Bytes)
	}
	const flags = unix.CLONE_VM | unix.CLONE_VFORK
	number, arg0, arg1 := uint64(unix.SYS_CLONE), uint64(flags|unix.SIGCHLD), uint64(0)
	into := cloneArgs{flags: flags | unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD)}
	if group != nil {
		into.cgroup = uint64(group.Fd())
		number, arg0, arg1 = unix.SYS_CLONE3, uint64(uintptr(unsafe.Pointer(&into))), uint64(unsafe.Sizeof(into))
	}
	syscall.ForkLock.Lock()
	beforeFork()
	child := cloneAndRun(s.Place.Steps, number, arg0, arg1)
	afterFork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(&into)
	runtime.KeepAlive(group)
	if child < 0 {
		return 0, &syslist.Error{What: "clone", Err: unix.Errno(-child)}
	}
	return s.findResult(int(child))
}

// findResult returns the process that has executed a program, and reaps the others.
func (s *Script) findResult(child int) (pid int, err error) {
	answer := syslist.Answer(s.memory[:len(s.Words)*8])
	pid = child
	for _, step := range s.steps {
		if !answer.WasExecuted(step.Step) || step.second != nil && answer.WasExecuted(step.second) {
			continue
		}
		if n := answer.GetResult(step.Step); step.clones && n > 0 {
			reapChild(pid)
			pid = int(n)
		} else if err == nil {
			err = answer.Check(step.name, step.Step)
		}
	}
	if err != nil {
		reapChild(pid)
		return 0, err
	}
	return pid, nil
}

// reapChild waits for a child that is about to exit.
func reapChild(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// cloneArgs is a struct clone_args of the kernel.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// cloneAndRun clones this process by a system call, and returns the PID of the child, or the negative number of the error.
// The child executes the Call at first and those that follow it, on the stack of its parent, which it does not change.
//
//go:noescape
func cloneAndRun(first, number, arg0, arg1 uint64) int64

// The Go runtime has these for package syscall, and for packages that need them, as this one. They block all signals of the
// thread: no handler may run in the child.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()
