package procgroup

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/process"
)

// An Init starts processes for a program that is process 1 of its PID namespace, and reaps
// them and all orphaned processes. A program with an Init must not wait for its children
// itself. The Init ends with the program.
type Init struct {
	thread chan func() // the thread that clones children runs these functions

	mu  sync.Mutex // held from the start of a process until it is in own, and to reap
	own map[int]*Process
}

// NewInit returns the Init of this program. The processes that it starts have no
// capabilities and never gain one, even as root, whatever this program may do, and cannot
// make some system calls, see setSeccompFilter. If network is false, they cannot create
// network sockets.
func NewInit(network bool) (*Init, error) {
	i := &Init{thread: make(chan func()), own: map[int]*Process{}}
	ready := make(chan error)
	allowed := socketFamilies
	if !network {
		allowed = offlineFamilies
	}
	go i.runThread(ready, allowed)
	if err := <-ready; err != nil {
		return nil, err
	}
	died := make(chan os.Signal, 1) // one signal is enough for any number of deaths
	signal.Notify(died, unix.SIGCHLD)
	go i.reapChildren(died)
	return i, nil
}

// runThread is the thread that clones children. On Linux each thread has its own
// capabilities: this one retains those that it needs to change the user, and leaves none to
// the programs that its children execute.
func (i *Init) runThread(ready chan<- error, families []uint32) {
	runtime.LockOSThread() // never unlocked: no other goroutine may run on it
	err := dropCapabilities()
	if err == nil {
		err = setSeccompFilter(families)
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range i.thread {
		f()
	}
}

// dropCapabilities sets no_new_privs and empties the thread's bounding set.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel has no more capabilities
			return nil
		}
		if errors.Is(err, unix.EPERM) { // we may not drop it; then it must not be in the set
			in, readErr := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
			if errors.Is(readErr, unix.EINVAL) { // without the right to drop, only a read shows the end
				return nil
			}
			if readErr == nil && in == 0 {
				continue
			}
		}
		if err != nil {
			return os.NewSyscallError("drop capabilities", err)
		}
	}
}

// Start starts a process of the Init, like the function Start.
func (i *Init) Start(p *Program, io process.Stdio) (*Process, error) {
	return i.startProgram(p, io, func(start func()) {
		done := make(chan struct{})
		i.thread <- func() { defer close(done); start() }
		<-done
	})
}

// StartFree starts a trusted program with the same rights as this one.
func (i *Init) StartFree(p *Program, io process.Stdio) (*Process, error) {
	return i.startProgram(p, io, func(start func()) { start() })
}

func (i *Init) startProgram(p *Program, io process.Stdio, clone func(start func())) (*Process, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h, err := p.startProcess(io, clone)
	if err != nil {
		return nil, err
	}
	h.mu, h.status = &i.mu, make(chan syscall.WaitStatus, 1)
	i.own[h.PID()] = h
	return h, nil
}

// reapChildren reaps all dead children on each signal of died.
func (i *Init) reapChildren(died <-chan os.Signal) {
	for range died {
		i.mu.Lock()
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil || pid == 0 {
				break
			}
			if h := i.own[pid]; h != nil {
				delete(i.own, pid)
				h.reaped = true
				h.hangUp() // so soon after the reaping, no other process has the PID
				h.status <- status
			}
		}
		i.mu.Unlock()
	}
}
