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

// An Init starts processes for a program that is the first one of its PID
// namespace, which inherits those that lose their parents, and reaps them all.
// A program that has one must not wait for its children itself. It ends with
// the program.
type Init struct {
	thread chan func() // runs what it is sent on the thread that children are cloned from

	mu  sync.Mutex // held while one is started, until it is in own, and to reap
	own map[int]*Process
}

// NewInit returns the Init of this program. What it starts has no capability
// and never gains one, also as root, whatever this program may do; and not all
// system calls, see confine. Without a network, they can make no sockets of one.
func NewInit(network bool) (*Init, error) {
	i := &Init{thread: make(chan func()), own: map[int]*Process{}}
	ready := make(chan error)
	allowed := families
	if !network {
		allowed = offline
	}
	go i.clone(ready, allowed)
	if err := <-ready; err != nil {
		return nil, err
	}
	died := make(chan os.Signal, 1) // one is enough for any number of deaths
	signal.Notify(died, unix.SIGCHLD)
	go i.reap(died)
	return i, nil
}

// clone is the thread. On Linux capabilities are a thread's own: this one keeps
// what it needs to become another user, and leaves nothing to the programs that
// are executed.
func (i *Init) clone(ready chan<- error, families []uint32) {
	runtime.LockOSThread() // and never unlocked: nothing else is to run on it
	err := disarm()
	if err == nil {
		err = confine(families)
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range i.thread {
		f()
	}
}

// disarm empties the thread's bounding set.
func disarm() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel has no more of them
			return nil
		}
		if errors.Is(err, unix.EPERM) { // not ours to drop; then there must be nothing to drop
			in, readErr := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
			if errors.Is(readErr, unix.EINVAL) { // who may drop none is not told that there are no more
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

// Start is the function Start, for the Init's processes.
func (i *Init) Start(p *Program, io process.Stdio) (*Process, error) {
	return i.start(p, io, func(start func()) {
		done := make(chan struct{})
		i.thread <- func() { defer close(done); start() }
		<-done
	})
}

// StartFree starts a program that may do all that this one may: one of the system's own.
func (i *Init) StartFree(p *Program, io process.Stdio) (*Process, error) {
	return i.start(p, io, func(start func()) { start() })
}

func (i *Init) start(p *Program, io process.Stdio, clone func(start func())) (*Process, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h, err := p.start(io, clone)
	if err != nil {
		return nil, err
	}
	h.mu, h.status = &i.mu, make(chan syscall.WaitStatus, 1)
	i.own[h.PID()] = h
	return h, nil
}

// reap reaps whoever has died, each time that somebody has.
func (i *Init) reap(died <-chan os.Signal) {
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
				h.hangUp() // numbers go round: nobody else has got this one yet
				h.status <- status
			}
		}
		i.mu.Unlock()
	}
}
