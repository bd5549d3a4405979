//go:build linux

package pid1

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// ErrLost says that the first process does not answer any more.
var ErrLost = errors.New("the first process of the sandbox has ended")

// An Init is the client of the first process of a sandbox. Its methods are safe for concurrent use.
type Init struct {
	requests, replies *os.File
	line              line // only serveLine uses it

	wake chan struct{} // has an element when serveLine has something to do
	lost chan struct{} // closed when serveLine has ended
	over chan struct{} // closed by Close

	mu     sync.Mutex
	todo   []func() error // for serveLine, whose first error ends it
	closed bool

	// Only serveLine uses these.
	children  int                     // the descriptor of the program that is readable when children have ended; 0 before the first process
	started   map[int]*Process        // by PID: those that have not ended
	ending    []*Process              // those that have ended, and whose output may not have been read
	connected []*Process              // those with streams
	early     map[int]unix.WaitStatus // by PID: exits in a copy of a sandbox of processes that it may yet adopt
}

// Connect returns the client of a program that has the other ends of these pipes as RequestFD and ReplyFD. It owns them.
// In a copy of a sandbox, saved is what Hold returned; else 0. The Init calls late for each second that the program does
// not answer, with their number, because something inside may have stopped it.
func Connect(requests, replies *os.File, saved int, late func(n int)) (*Init, error) {
	first, _, err := syslist.LayOut(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	in := &Init{
		requests: requests, replies: replies, line: line{requests: requests, replies: replies, first: first, late: late},
		wake: make(chan struct{}, 1), lost: make(chan struct{}), over: make(chan struct{}), children: saved, started: map[int]*Process{},
	}
	if saved > 0 {
		in.early = map[int]unix.WaitStatus{}
	}
	go in.serveLine()
	return in, nil
}

// Close ends the connection. Processes that run are lost.
func (in *Init) Close() {
	in.mu.Lock()
	if !in.closed {
		close(in.over)
	}
	in.closed = true
	in.mu.Unlock()
	in.wakeUp()
	_ = in.requests.Close()
	_ = in.replies.Close()
	<-in.lost
}

// queueCall has serveLine call f.
func (in *Init) queueCall(f func() error) {
	in.mu.Lock()
	in.todo = append(in.todo, f)
	in.mu.Unlock()
	in.wakeUp()
}

func (in *Init) wakeUp() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// runCall has serveLine call f, and returns its error. It returns sooner if ctx ends or the first process is lost.
func (in *Init) runCall(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	in.queueCall(func() error {
		err := f()
		done <- err
		var inside *Error
		if errors.As(err, &inside) {
			return nil
		}
		return err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-in.lost:
	}
	select {
	case err := <-done:
		return err
	default:
		return ErrLost
	}
}

// serveLine is the only user of the line to the program. It ends with the line.
func (in *Init) serveLine() {
	defer close(in.lost)
	for in.takeStep() == nil {
	}
	for _, p := range slices.Concat(slices.Collect(maps.Values(in.started)), in.ending) {
		if !p.exited {
			p.err = ErrLost
		}
		close(p.ended)
	}
	for _, p := range in.connected {
		for _, o := range p.outputs {
			if o.isOpen() {
				o.finishOutput()
			}
		}
	}
}

// takeStep makes the calls that are queued, or waits for something to do. It returns an error when the line is lost.
func (in *Init) takeStep() error {
	in.mu.Lock()
	todo, closed := in.todo, in.closed
	in.todo = nil
	in.mu.Unlock()
	if closed {
		return ErrLost
	}
	for _, f := range todo {
		if err := f(); err != nil {
			return err
		}
	}
	var still []*Process
	for _, p := range in.ending {
		done, err := p.finishProcess()
		if err != nil {
			return err
		}
		if !done {
			still = append(still, p)
		}
	}
	in.ending = still
	if len(todo) > 0 {
		return nil
	}
	return in.awaitEvents()
}

// awaitEvents waits for something to do, or for an event inside, which it handles.
func (in *Init) awaitEvents() error {
	if in.children == 0 {
		<-in.wake
		return nil
	}
	set, handlers := in.pollSet()
	l := newList()
	n := l.Reserve((len(set) + 7) / 8)
	for i := range len(set) / 8 {
		l.Words[n+i] = binary.LittleEndian.Uint64(set[i*8:])
	}
	poll := l.AddCall(unix.SYS_PPOLL, wordAt(n), uint64(len(set)/pollSize), 0, 0, 8)
	l.addAnswer()
	if err := in.line.sendList(l); err != nil {
		return err
	}
	type answer struct {
		words syslist.Answer
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		w, err := in.line.awaitAnswer(len(l.Words))
		answers <- answer{w, err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-in.wake:
		a.err = in.line.endWait()
	case <-time.After(checkTime):
		a.err = in.line.endWait()
	}
	if a.words == nil && a.err == nil {
		stop := in.line.watchAnswer()
		a = <-answers
		stop()
	}
	if a.err != nil {
		return a.err
	}
	failed := a.words.GetResult(poll) < 0 // root inside has limited the descriptors of the program
	if failed {
		time.Sleep(checkTime / 100)
	}
	for i, handle := range handlers {
		if (failed || binary.LittleEndian.Uint16(a.words[i*pollSize+6:]) != 0) && handle != nil {
			if err := handle(); err != nil {
				return err
			}
		}
	}
	return nil
}

const pollSize = 8 // bytes of a struct pollfd

// checkTime is the time after which the program is asked whether it still waits: root inside may have stopped it.
const checkTime = 10 * time.Second

// pollSet returns an array of struct pollfd, and what to do for each.
func (in *Init) pollSet() (set []byte, handlers []func() error) {
	add := func(fd int, events uint16, handle func() error) {
		set = binary.LittleEndian.AppendUint32(set, uint32(fd))
		set = binary.LittleEndian.AppendUint32(set, uint32(events))
		handlers = append(handlers, handle)
	}
	add(RequestFD, unix.POLLIN, nil)
	add(in.children, unix.POLLIN, in.reapChildren)
	in.connected = slices.DeleteFunc(in.connected, func(p *Process) bool { return !p.addEvents(add) })
	return set, handlers
}

// watchChildren makes the program tell when children end.
func (in *Init) watchChildren() error {
	if in.children > 0 {
		return nil
	}
	l := newList()
	l.AddCall(unix.SYS_RT_SIGACTION, uint64(unix.SIGCHLD), l.AddBytes(make([]byte, 32)), 0, 8)
	fd := l.AddCall(unix.SYS_SIGNALFD4, ^uint64(0), l.AddBytes(binary.LittleEndian.AppendUint64(nil, 1<<(uint(unix.SIGCHLD)-1))), 8, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
	w, err := in.line.doList(l)
	if err == nil {
		err = w.Check("children", fd)
	}
	if err == nil {
		in.children = int(w.GetResult(fd))
	}
	return err
}

// reapChildren asks for the exits of children until there is none. The program is the parent of orphans, too.
func (in *Init) reapChildren() error {
	const many = 8
	for {
		l := newList()
		l.AddCall(unix.SYS_READ, uint64(in.children), readBase, readSize) // the signal
		var waits [many]*syslist.Step
		status := l.Reserve(many)
		for i := range waits {
			waits[i] = l.AddCall(unix.SYS_WAIT4, ^uint64(0), wordAt(status+i), unix.WNOHANG)
		}
		answer := l.addAnswer()
		for _, wait := range waits {
			wait.OnZero, wait.OnNegative = answer, answer
		}
		if err := in.line.sendList(l); err != nil {
			return err
		}
		w, err := in.line.receiveAnswer(len(l.Words))
		if err != nil {
			return err
		}
		for i, wait := range waits {
			pid := w.GetResult(wait)
			if pid <= 0 {
				return nil
			}
			exit := unix.WaitStatus(uint32(w.GetWord(status + i)))
			if in.early != nil && in.started[int(pid)] == nil {
				in.early[int(pid)] = exit
			}
			if p := in.started[int(pid)]; p != nil {
				delete(in.started, int(pid))
				in.ending = append(in.ending, p)
				if err := p.recordExit(exit); err != nil {
					return err
				}
			}
		}
	}
}

// closeAll closes descriptors of the program.
func (in *Init) closeAll(fds ...int) error {
	l := newList()
	for _, fd := range fds {
		l.AddCall(unix.SYS_CLOSE, uint64(fd))
	}
	_, err := in.line.doList(l)
	return err
}

// A State has all that the client of a copy of a sandbox needs.
type State struct {
	Saved   int      // for Connect
	Running []Handle // the processes that run
	Ended   []Handle // those that have ended, and whose streams are open
}

// Hold makes the program wait for its client, with no list in progress, until release is called, and returns the state for
// copies that are made meanwhile.
func (in *Init) Hold(ctx context.Context) (state State, release func(), err error) {
	held, free := make(chan State, 1), make(chan struct{})
	in.queueCall(func() error {
		held <- in.currentState()
		select {
		case <-free:
		case <-in.over:
		}
		return nil
	})
	release = sync.OnceFunc(func() { close(free) })
	select {
	case state = <-held:
		return state, release, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-in.lost:
		err = ErrLost
	}
	release()
	return State{}, nil, err
}

func (in *Init) currentState() State {
	s := State{Saved: in.children}
	for _, p := range in.started {
		s.Running = append(s.Running, p.Handle())
	}
	for _, p := range in.connected {
		if p.exited {
			s.Ended = append(s.Ended, p.Handle())
		}
	}
	return s
}
