//go:build linux

package pid1

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// A Command describes a process to start.
type Command struct {
	Args   []string
	Env    []string
	Dir    string // the absolute working directory
	Path   string // directories, separated by colons, in which a program without a slash is searched
	UID    uint32
	GID    uint32
	Groups []uint32
	Rows   uint16 // with Cols, the size of its terminal
	Cols   uint16
	TTY    bool // it has a terminal
	Stdin  bool // without a terminal: it has input
}

// Start starts a process. It owns streams, also if it fails. An error from inside is an *Error. If ctx ends before the process
// has started, that is killed when it has.
func (in *Init) Start(ctx context.Context, cmd *Command, streams Streams) (*Process, error) {
	const taken, abandoned = 1, 2
	var result atomic.Int32
	var p *Process
	err := in.runCall(ctx, func() (err error) {
		if result.Load() == abandoned {
			streams.closeFiles()
			return &Error{What: "start", Err: unix.ECANCELED}
		}
		if err = in.watchChildren(); err == nil {
			p, err = in.startProcess(cmd, streams)
		}
		if err != nil {
			streams.closeFiles()
		} else if !result.CompareAndSwap(0, taken) {
			err = in.killProcess(p.handle.PID)
		}
		return err
	})
	if err != nil && ctx.Err() != nil && !result.CompareAndSwap(0, abandoned) { // it has just started
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (in *Init) killProcess(pid int) error {
	l := newList()
	l.AddCall(unix.SYS_KILL, uint64(pid), uint64(unix.SIGKILL))
	_, err := in.line.doList(l)
	return err
}

// listCandidates returns the paths at which the program of cmd may be.
func (cmd *Command) listCandidates() []string {
	name := cmd.Args[0]
	if strings.Contains(name, "/") {
		return []string{joinDir(cmd.Dir, name)}
	}
	var list []string
	for dir := range strings.SplitSeq(cmd.Path, ":") {
		list = append(list, joinDir(cmd.Dir, path.Join(dir, name)))
	}
	return list
}

func joinDir(dir, name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(dir, name)
}

// A search asks which of the places of a program have one.
type search struct {
	places []string
	stats  []int // words of the answer
	calls  []*syslist.Step
}

func (l *list) addSearch(places []string) *search {
	const statWords = 18
	s := &search{places: places}
	for _, name := range places {
		s.stats = append(s.stats, l.Reserve(statWords))
		s.calls = append(s.calls, l.AddCall(unix.SYS_NEWFSTATAT, atCWD, l.AddText(name), wordAt(s.stats[len(s.stats)-1]), 0))
	}
	return s
}

// atCWD is AT_FDCWD.
const atCWD = 1<<64 - 100

// listFound returns the places that have a regular file: a named pipe would block the program.
func (s *search) listFound(w syslist.Answer) ([]string, error) {
	problem := unix.ENOENT
	var found []string
	for i, name := range s.places {
		switch err := w.Check("", s.calls[i]); {
		case err == nil && w.ModeOf(s.stats[i])&unix.S_IFMT == unix.S_IFREG:
			found = append(found, name)
		case err == nil || errors.Is(err, unix.EACCES):
			problem = unix.EACCES
		}
	}
	if len(found) == 0 {
		return nil, &syslist.Error{Err: problem}
	}
	return found, nil
}

// descriptors are the program's own and a child's ends of its streams.
type descriptors struct {
	handle Handle
	child  []int  // stdin, stdout, stderr; none with a terminal
	tty    string // path of the terminal
}

func (d *descriptors) listAll() []int {
	return slices.DeleteFunc(append([]int{d.handle.Stdin, d.handle.Stdout, d.handle.Stderr}, d.child...), func(fd int) bool { return fd <= 0 })
}

// preparePipes has the program look for the executable of a process and make its pipes.
func (in *Init) preparePipes(cmd *Command) ([]string, *descriptors, error) {
	l := newList()
	s := l.addSearch(cmd.listCandidates())
	var pipes [3]int
	var calls []*syslist.Step
	for i := range pipes {
		pipes[i] = l.Reserve(1)
		if i > 0 || cmd.Stdin {
			calls = append(calls, l.AddCall(unix.SYS_PIPE2, wordAt(pipes[i]), unix.O_CLOEXEC|unix.O_NONBLOCK))
		}
	}
	w, err := in.line.doList(l)
	if err != nil {
		return nil, nil, err
	}
	ends := func(i int) (reader, writer int) {
		return int(uint32(w.GetWord(pipes[i]))), int(uint32(w.GetWord(pipes[i]) >> 32))
	}
	d := &descriptors{child: make([]int, 3)}
	d.child[0], d.handle.Stdin = ends(0)
	d.handle.Stdout, d.child[1] = ends(1)
	d.handle.Stderr, d.child[2] = ends(2)
	programs, err := s.listFound(w)
	for _, c := range calls {
		if err == nil {
			err = w.Check("streams", c)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, in.closeAll(d.listAll()...))
	}
	return programs, d, nil
}

// prepareTerminal has the program look for the executable of a process and make its terminal.
func (in *Init) prepareTerminal(cmd *Command) ([]string, *descriptors, error) {
	l := newList()
	s := l.addSearch(cmd.listCandidates())
	open := l.AddCall(unix.SYS_OPENAT, atCWD, l.AddText("/dev/ptmx"), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC)
	w, err := in.line.doList(l)
	if err == nil {
		err = w.Check("terminal", open)
	}
	if err != nil {
		return nil, nil, err
	}
	programs, err := s.listFound(w)
	master := int(w.GetResult(open))
	if err != nil {
		return nil, nil, errors.Join(err, in.closeAll(master))
	}
	l = newList()
	number := l.Reserve(1)
	calls := []*syslist.Step{
		l.AddCall(unix.SYS_IOCTL, uint64(master), unix.TIOCSPTLCK, l.AddBytes(make([]byte, 4))),
		l.AddCall(unix.SYS_IOCTL, uint64(master), unix.TIOCGPTN, wordAt(number)),
		l.AddCall(unix.SYS_IOCTL, uint64(master), unix.TIOCSWINSZ, l.AddBytes(windowSize(cmd.Rows, cmd.Cols))),
	}
	if w, err = in.line.doList(l); err != nil {
		return nil, nil, err
	}
	for _, c := range calls {
		if err := w.Check("terminal", c); err != nil {
			return nil, nil, errors.Join(err, in.closeAll(master))
		}
	}
	return programs, &descriptors{handle: Handle{Stdout: master, TTY: true}, tty: fmt.Sprint("/dev/pts/", uint32(w.GetWord(number)))}, nil
}

// windowSize returns a struct winsize.
func windowSize(rows, cols uint16) []byte {
	b := binary.LittleEndian.AppendUint16(nil, rows)
	return append(binary.LittleEndian.AppendUint16(b, cols), 0, 0, 0, 0)
}

// startProcess starts a process. Only serveLine calls it.
func (in *Init) startProcess(cmd *Command, streams Streams) (*Process, error) {
	prepare := in.preparePipes
	if cmd.TTY {
		prepare = in.prepareTerminal
	}
	programs, d, err := prepare(cmd)
	if err != nil {
		return nil, err
	}
	pid, err := in.spawnChild(cmd, programs, d)
	if err != nil {
		var inside *Error
		if errors.As(err, &inside) {
			err = errors.Join(err, in.closeAll(d.listAll()...))
		}
		return nil, err
	}
	d.handle.PID = pid
	return in.adoptProcess(d.handle, streams), nil
}

// spawnChild has the program start a child, whose calls it executes until one of them executes another program. Both have the
// same memory, and the program waits for the child meanwhile.
func (in *Init) spawnChild(cmd *Command, programs []string, d *descriptors) (pid int, err error) {
	l := newList()
	var replica *syslist.Step
	if d.tty != "" {
		replica = l.AddCall(unix.SYS_OPENAT, atCWD, l.AddText(d.tty), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	}
	clone := l.AddCall(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK|uint64(unix.SIGCHLD))
	for _, fd := range d.child {
		if fd > 0 {
			l.AddCall(unix.SYS_CLOSE, uint64(fd))
		}
	}
	answer := l.addAnswer()
	answer.OnPositive, answer.OnZero, answer.OnNegative = syslist.Finish, syslist.Finish, syslist.Finish
	exit := l.AddCall(unix.SYS_EXIT_GROUP, 126)
	child := len(l.Steps)
	var names []string
	prepare := func(name string, nr uintptr, args ...uint64) {
		l.AddCall(nr, args...).OnNegative = exit
		names = append(names, name)
	}
	prepare("signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, l.AddBytes(make([]byte, 8)), 0, 8)
	prepare("session", unix.SYS_SETSID)
	open := func(name string, flags uint64) {
		prepare("stdin", unix.SYS_CLOSE, 0) // so that open returns this number
		prepare("stdin", unix.SYS_OPENAT, atCWD, l.AddText(name), flags)
	}
	streams := d.child
	if d.tty != "" {
		open(d.tty, unix.O_RDWR)
		prepare("terminal", unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
		prepare("terminal", unix.SYS_FCHOWN, 0, uint64(cmd.UID), uint64(cmd.GID))
		streams = []int{0, 0, 0}
	} else if streams[0] <= 0 {
		open(os.DevNull, unix.O_RDONLY)
	}
	for i, fd := range streams {
		if i > 0 || fd > 0 {
			prepare("streams", unix.SYS_DUP3, uint64(fd), uint64(i), 0)
			prepare("streams", unix.SYS_FCNTL, uint64(i), unix.F_SETFL, 0) // not O_NONBLOCK
		}
	}
	prepare("descriptors", unix.SYS_CLOSE_RANGE, 3, 0xffffffff, 0)
	var groups []byte
	for _, g := range cmd.Groups {
		groups = binary.LittleEndian.AppendUint32(groups, g)
	}
	prepare("groups", unix.SYS_SETGROUPS, uint64(len(cmd.Groups)), l.AddBytes(groups))
	prepare("group", unix.SYS_SETRESGID, uint64(cmd.GID), uint64(cmd.GID), uint64(cmd.GID))
	prepare("user", unix.SYS_SETRESUID, uint64(cmd.UID), uint64(cmd.UID), uint64(cmd.UID))
	prepare("setting up cwd", unix.SYS_CHDIR, l.AddText(cmd.Dir))
	args, env := l.AddTexts(cmd.Args), l.AddTexts(cmd.Env)
	execs := len(l.Steps)
	for _, name := range programs {
		l.AddCall(unix.SYS_EXECVE, l.AddText(name), args, env)
	}
	l.Steps[len(l.Steps)-1].OnNegative = exit
	clone.OnZero = l.Steps[child]
	if err := in.line.sendList(l); err != nil {
		return 0, err
	}
	w, err := in.line.receiveAnswer(len(l.Words))
	if err != nil {
		return 0, err
	}
	if replica != nil {
		if err := w.Check("terminal", replica); err != nil {
			return 0, err
		}
		d.handle.Stdin = int(w.GetResult(replica))
	}
	if err := w.Check("fork", clone); err != nil {
		return 0, err
	}
	for i, name := range names {
		if err := w.Check(name, l.Steps[child+i]); err != nil {
			return 0, err
		}
	}
	var problem error
	for _, exec := range l.Steps[execs:] {
		if !w.WasExecuted(exec) { // it did not return
			return int(w.GetResult(clone)), nil
		}
		if err := w.Check("", exec); problem == nil || !errors.Is(err, unix.ENOENT) {
			problem = err
		}
	}
	return 0, problem
}
