//go:build linux

package pid1

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// ErrLost says that the first process has ended.
var ErrLost = errors.New("the first process of the sandbox has ended")

// An Init is the client of the first process of a sandbox. Its methods are safe for concurrent use.
type Init struct {
	conn   *net.UnixConn
	memory []byte
	poll   uint64      // address of the program's call to continue with after a list
	late   func(n int) // called for each second that a list takes, with their number

	list    sync.Mutex // held while the program executes a list
	answers chan struct{}
	lost    chan struct{} // closed when the connection has ended

	mu       sync.Mutex
	children map[int]*Process        // by PID: those that have not ended
	early    map[int]unix.WaitStatus // by PID: ends of processes that are not in children, while one is being started
}

// A Process is a program that the first process has started.
type Process struct {
	PID    int // inside
	status unix.WaitStatus
	err    error
	ended  chan struct{}
}

// Wait blocks until the process has ended. It returns ErrLost if the first process ends before.
func (p *Process) Wait() (unix.WaitStatus, error) {
	<-p.ended
	return p.status, p.err
}

// A Line is a connection to a first process that has not started yet: its ends of the socket and the memory.
type Line struct {
	Socket *os.File // SocketFD of the program
	Memory *os.File // MemoryFD of the program
	conn   *net.UnixConn
	memory []byte
}

// NewLine returns a Line. Call Connect or Close.
func NewLine() (_ *Line, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "first process")
	defer ours.Close()
	l := &Line{Socket: os.NewFile(uintptr(fds[1]), "keeper")}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	l.conn = conn.(*net.UnixConn)
	fd, err := unix.MemfdCreate("first process", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	l.Memory = os.NewFile(uintptr(fd), "memory")
	if err := l.Memory.Truncate(workSize); err != nil {
		return nil, err
	}
	l.memory, err = unix.Mmap(fd, 0, workSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return l, os.NewSyscallError("mmap", err)
}

// Close frees a Line that has not been connected.
func (l *Line) Close() {
	l.closeTheirs()
	if l.conn != nil {
		_ = l.conn.Close()
	}
	if l.memory != nil {
		_ = unix.Munmap(l.memory)
	}
}

func (l *Line) closeTheirs() {
	_ = l.Socket.Close()
	_ = l.Memory.Close()
}

// Connect returns the client of a program that has been started with the other ends of the Line, which it closes here. late
// is called for each second that the program does not answer, with their number, because something inside may have
// stopped it.
func (l *Line) Connect(late func(n int)) (*Init, error) {
	first, _, err := syslist.LayOut(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	l.closeTheirs()
	in := &Init{
		conn: l.conn, memory: l.memory, poll: first + callPoll*syslist.CallSize, late: late,
		answers: make(chan struct{}, 1), lost: make(chan struct{}), children: map[int]*Process{},
	}
	go in.receiveAll()
	return in, nil
}

// Close ends the connection, and with it the first process and all others of the sandbox.
func (in *Init) Close() {
	_ = in.conn.Close()
	<-in.lost
	in.list.Lock() // a list in progress ends with the connection
	defer in.list.Unlock()
	if in.memory != nil {
		_ = unix.Munmap(in.memory)
		in.memory = nil
	}
}

// Lost returns a channel that is closed when the connection has ended.
func (in *Init) Lost() <-chan struct{} { return in.lost }

// receiveAll receives what the program sends, until the connection ends.
func (in *Init) receiveAll() {
	buf := make([]byte, eventSize)
	for {
		n, err := in.conn.Read(buf)
		switch {
		case err != nil || n == 0:
			in.endAll()
			return
		case n == eventSize:
			in.endChild(int(binary.LittleEndian.Uint64(buf)), unix.WaitStatus(binary.LittleEndian.Uint32(buf[8:])))
		default:
			select {
			case in.answers <- struct{}{}:
			default:
			}
		}
	}
}

// endChild records the end of a child. Orphans that the program has reaped are not in children.
func (in *Init) endChild(pid int, status unix.WaitStatus) {
	in.mu.Lock()
	defer in.mu.Unlock()
	p := in.children[pid]
	if p == nil {
		if in.early != nil {
			in.early[pid] = status
		}
		return
	}
	delete(in.children, pid)
	p.status = status
	close(p.ended)
}

// addChild returns a child that has just been started. It may have ended.
func (in *Init) addChild(pid int) *Process {
	in.mu.Lock()
	defer in.mu.Unlock()
	p := &Process{PID: pid, ended: make(chan struct{})}
	status, ended := in.early[pid]
	switch {
	case ended:
		p.status = status
		close(p.ended)
	case in.children == nil:
		p.err = ErrLost
		close(p.ended)
	default:
		in.children[pid] = p
	}
	return p
}

// noteEarly sets whether the ends of unknown processes are retained.
func (in *Init) noteEarly(on bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.early = nil
	if on {
		in.early = map[int]unix.WaitStatus{}
	}
}

func (in *Init) endAll() {
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.lost)
	for _, p := range in.children {
		p.err = ErrLost
		close(p.ended)
	}
	in.children = nil
}

// Running returns the number of processes whose ends have not been received.
func (in *Init) Running() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.children)
}

// Hold waits until the program rests, and lets it start nothing and send no signal until release is called: calls wait.
func (in *Init) Hold() (release func()) {
	in.list.Lock()
	return in.list.Unlock
}

// newList returns an empty list.
func newList() *syslist.List {
	return &syslist.List{Place: syslist.Place{Words: wordsBase, Steps: stepsBase, Bytes: bytesBase, End: workBase + workSize}}
}

// doList has the program execute a list, with files as its descriptors from firstFD on, and returns the answer. The list has
// to close them. The caller holds in.list.
func (in *Init) doList(l *syslist.List, files ...*os.File) (syslist.Answer, error) {
	if in.memory == nil {
		return nil, ErrLost
	}
	parts, err := l.Encode(in.poll)
	if err != nil {
		return nil, &syslist.Error{What: "arguments", Err: unix.E2BIG}
	}
	for _, p := range parts {
		copy(in.memory[p.Address-workBase:], p.Bytes)
	}
	in.prepareMessage()
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := in.conn.WriteMsgUnix([]byte{1}, rights, nil); err != nil {
		return nil, ErrLost
	}
	stop := in.watchList()
	defer stop()
	select {
	case <-in.answers:
	case <-in.lost:
		return nil, ErrLost
	}
	answer := make(syslist.Answer, len(l.Words)*8)
	copy(answer, in.memory[wordsBase-workBase:])
	if big := len(parts[1].Bytes) + bytesBase - workBase; big > retainedSize {
		_ = unix.Madvise(in.memory[retainedSize:], unix.MADV_REMOVE)
	}
	return answer, nil
}

// retainedSize is the part of the shared memory that stays allocated between lists.
const retainedSize = 512 << 10

// prepareMessage writes the struct msghdr for the next message: the kernel changes it.
func (in *Init) prepareMessage() {
	put := func(offset int, v uint64) { binary.LittleEndian.PutUint64(in.memory[offset:], v) }
	put(iovOffset, messageBase+byteOffset)
	put(iovOffset+8, 1)
	put(0, 0) // no address
	put(8, 0)
	put(16, messageBase+iovOffset)
	put(24, 1)
	put(32, messageBase+controlOffset)
	put(40, uint64(unix.CmsgSpace(maxFiles*4)))
	put(48, 0)
}

// answerTime is the time within which the program executes a list, unless something stopped it.
const answerTime = time.Second

// watchList calls late for each answerTime until stop is called.
func (in *Init) watchList() (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(answerTime, func() {
		for n := 1; ; n++ {
			in.late(n)
			select {
			case <-done:
				return
			case <-time.After(answerTime):
			}
		}
	})
	return func() { timer.Stop(); close(done) }
}

// addAnswer adds the call that sends the answer.
func addAnswer(l *syslist.List) *syslist.Step {
	return l.AddCall(unix.SYS_SENDTO, SocketFD, wordsBase, answerSize, unix.MSG_NOSIGNAL, 0, 0)
}

// Signal sends a signal to a process inside, or to all but the first if pid is -1.
func (in *Init) Signal(pid int, sig unix.Signal) error {
	l := newList()
	kill := l.AddCall(unix.SYS_KILL, uint64(pid), uint64(sig))
	addAnswer(l)
	in.list.Lock()
	defer in.list.Unlock()
	answer, err := in.doList(l)
	if err != nil {
		return err
	}
	if err := answer.Check("", kill); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	return nil
}

// SignalAll sends signals to several processes inside, and ignores those that have ended.
func (in *Init) SignalAll(pids []int, sig unix.Signal) error {
	l := newList()
	for _, pid := range pids {
		l.AddCall(unix.SYS_KILL, uint64(pid), uint64(sig))
	}
	addAnswer(l)
	in.list.Lock()
	defer in.list.Unlock()
	_, err := in.doList(l)
	return err
}

// A Command describes a program to start.
type Command struct {
	Programs []string // paths, of which the first that exists is executed; none for the last of the files
	Args     []string
	Env      []string
	Dir      string // the absolute working directory
	UID      uint32
	GID      uint32
	Groups   []uint32 // nil leaves them
	TTY      bool     // stdin is its terminal
}

// Start starts a program with stdio as its three streams; with a terminal they are the same. Of a Command without Programs,
// the program is self. An error from inside is a *syslist.Error. If ctx ends before the program has started, that is killed when
// it has.
func (in *Init) Start(ctx context.Context, cmd *Command, stdio [3]*os.File, self *os.File) (*Process, error) {
	type result struct {
		p   *Process
		err error
	}
	done := make(chan result, 1)
	files := stdio[:]
	if self != nil {
		files = append(files, self)
	}
	start := func() {
		in.list.Lock()
		defer in.list.Unlock()
		if ctx.Err() != nil {
			done <- result{nil, ctx.Err()}
			return
		}
		p, err := in.startProcess(cmd, files)
		done <- result{p, err}
	}
	if ctx.Done() == nil {
		start()
		r := <-done
		return r.p, r.err
	}
	go start()
	select {
	case r := <-done:
		return r.p, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-done; r.err == nil {
			_ = in.Signal(r.p.PID, unix.SIGKILL) // it may have ended
		}
	}()
	return nil, ctx.Err()
}

func (in *Init) startProcess(cmd *Command, files []*os.File) (*Process, error) {
	l, clone, steps := cmd.listCalls(len(files))
	in.noteEarly(true)
	defer in.noteEarly(false)
	answer, err := in.doList(l, files...)
	if err != nil {
		return nil, err
	}
	if err := answer.Check("fork", clone); err != nil {
		return nil, err
	}
	var problem error
	for _, s := range steps {
		if !answer.WasExecuted(s.Step) { // it did not return, or the clone was killed before
			return in.addChild(int(answer.GetResult(clone))), nil
		}
		err := answer.Check(s.name, s.Step)
		if err != nil && s.name != "" {
			return nil, err
		}
		if problem == nil || !errors.Is(err, unix.ENOENT) {
			problem = err
		}
	}
	return nil, problem
}

// A childStep is a call of the child. The name is "" if it executes a program.
type childStep struct {
	*syslist.Step
	name string
}

// listCalls returns the list that starts the program, the call that clones the program, and the calls of the clone. Both have
// the same memory, and the first process waits for the clone until it has executed the program.
func (cmd *Command) listCalls(files int) (*syslist.List, *syslist.Step, []childStep) {
	l := newList()
	clone := l.AddCall(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK|uint64(unix.SIGCHLD), 0, 0, 0, 0)
	for i := range files {
		l.AddCall(unix.SYS_CLOSE, uint64(firstFD+i))
	}
	answer := addAnswer(l)
	answer.OnPositive, answer.OnZero, answer.OnNegative = syslist.Finish, syslist.Finish, syslist.Finish
	exit := l.AddCall(unix.SYS_EXIT_GROUP, 126)
	var steps []childStep
	prepare := func(name string, nr uintptr, args ...uint64) {
		s := l.AddCall(nr, args...)
		s.OnNegative = exit
		steps = append(steps, childStep{s, name})
	}
	prepare("signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, l.AddBytes(make([]byte, 8)), 0, 8)
	prepare("session", unix.SYS_SETSID)
	for i := range 3 {
		prepare("streams", unix.SYS_DUP3, uint64(firstFD+i), uint64(i), 0)
	}
	if cmd.TTY {
		prepare("terminal", unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
		prepare("terminal", unix.SYS_FCHOWN, 0, uint64(cmd.UID), ^uint64(0))
	}
	if cmd.Groups != nil {
		var groups []byte
		for _, g := range cmd.Groups {
			groups = binary.LittleEndian.AppendUint32(groups, g)
		}
		prepare("groups", unix.SYS_SETGROUPS, uint64(len(cmd.Groups)), l.AddBytes(groups))
	}
	prepare("group", unix.SYS_SETRESGID, uint64(cmd.GID), uint64(cmd.GID), uint64(cmd.GID))
	prepare("user", unix.SYS_SETRESUID, uint64(cmd.UID), uint64(cmd.UID), uint64(cmd.UID))
	prepare("directory", unix.SYS_CHDIR, l.AddText(cmd.Dir))
	args, env := l.AddTexts(cmd.Args), l.AddTexts(cmd.Env)
	for _, name := range cmd.Programs {
		steps = append(steps, childStep{l.AddCall(unix.SYS_EXECVE, l.AddText(name), args, env), ""})
	}
	if len(cmd.Programs) == 0 {
		s := l.AddCall(unix.SYS_EXECVEAT, uint64(firstFD+files-1), l.AddText(""), args, env, unix.AT_EMPTY_PATH)
		steps = append(steps, childStep{s, ""})
	}
	steps[len(steps)-1].OnPositive, steps[len(steps)-1].OnNegative = exit, exit
	clone.OnZero = steps[0].Step
	exit.OnNegative = exit
	return l, clone, steps
}
