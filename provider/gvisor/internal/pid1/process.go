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

// Streams are the client's ends of the streams of a process. A Process owns and closes them. One with a terminal uses no
// Stderr.
type Streams struct{ Stdin, Stdout, Stderr *os.File }

func (s Streams) closeFiles() {
	for _, f := range []*os.File{s.Stdin, s.Stdout, s.Stderr} {
		_ = f.Close() // which a nil file survives
	}
}

// A Process is a child of the first process.
type Process struct {
	in     *Init
	handle Handle
	ended  chan struct{}
	status unix.WaitStatus // valid when ended is closed
	err    error           // likewise

	// Only Init.serveLine uses these.
	outputs [2]*output // of stdout, which is a terminal's, and stderr; nil without
	input   *input     // nil without
	exited  bool       // its status is known
	keys    keyboard
}

// A Handle finds a process again in a copy of its sandbox. The numbers are descriptors of the program, 0 for none.
type Handle struct {
	PID    int  `json:"pid"`
	Stdin  int  `json:"stdin,omitempty"` // of a terminal: its other side, which stays open until the process has ended
	Stdout int  `json:"stdout"`
	Stderr int  `json:"stderr,omitempty"`
	TTY    bool `json:"tty,omitempty"`
}

// PID returns the number of the process inside.
func (p *Process) PID() int { return p.handle.PID }

// Handle returns the handle of the process while the Init is on hold.
func (p *Process) Handle() Handle {
	h := Handle{PID: p.handle.PID, TTY: p.handle.TTY}
	switch {
	case h.TTY && !p.exited:
		h.Stdin = p.handle.Stdin
	case !h.TTY && p.input != nil:
		h.Stdin = p.input.fd
	}
	for i, o := range p.outputs {
		if o.isOpen() {
			*[]*int{&h.Stdout, &h.Stderr}[i] = o.fd
		}
	}
	return h
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait blocks until the process has ended, or until the first process has, which is ErrLost.
func (p *Process) Wait() (unix.WaitStatus, error) {
	<-p.ended
	return p.status, p.err
}

// Resize sets the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, rows, cols uint16) error {
	return p.in.runCall(ctx, func() error {
		if !p.handle.TTY || !p.outputs[0].isOpen() {
			return &Error{"terminal", unix.ENOTTY}
		}
		l := &list{}
		set := l.addCall(unix.SYS_IOCTL, uint64(p.handle.Stdout), unix.TIOCSWINSZ, l.addBytes(windowSize(rows, cols)))
		w, err := p.in.line.doList(l)
		if err != nil {
			return err
		}
		return w.checkCall("terminal", set)
	})
}

// An output is a stream that a process writes. The program reads it only when all before has been delivered.
type output struct {
	fd      int
	bytes   chan []byte // nil once the stream has ended
	busy    bool        // bytes are being delivered
	early   []byte      // for delivery before the program is asked for more
	drained bool        // all that the process had written before its end has been delivered
}

// isOpen reports whether the process, or a descendant, can write more. o may be nil.
func (o *output) isOpen() bool { return o != nil && o.bytes != nil }

// insertBytes adds b to the output.
func (o *output) insertBytes(b []byte) {
	switch {
	case o.bytes == nil:
	case o.busy:
		o.early = append(o.early, b...)
	default:
		o.busy = true
		o.bytes <- b
	}
}

// deliverNext continues after a delivery.
func (o *output) deliverNext() error {
	early := o.early
	o.busy, o.early = false, nil
	if len(early) > 0 {
		o.insertBytes(early)
	}
	return nil
}

func (o *output) finishOutput() {
	if o.bytes != nil {
		close(o.bytes)
		o.bytes = nil
	}
}

// deliverOutput writes what arrives in o to f until the stream ends. If nobody reads f any more, it discards the rest.
func (p *Process) deliverOutput(o *output, bytes <-chan []byte, f *os.File) {
	defer f.Close()
	for b := range bytes {
		_, _ = f.Write(b)
		p.in.queueCall(o.deliverNext)
	}
}

// An input is a stream that a process reads.
type input struct {
	fd      int
	file    *os.File
	pending []byte
	held    bool      // pending waits
	taken   chan bool // has an element after pending was written: whether the process reads on
}

// feedInput has the program write what f has to the process's input.
func (p *Process) feedInput(input *input) {
	defer input.file.Close()
	buf := make([]byte, readSize)
	for {
		n, err := input.file.Read(buf)
		if n > 0 {
			p.in.queueCall(func() error {
				if p.input == nil {
					input.taken <- false
				}
				input.pending = buf[:n]
				return nil
			})
			select {
			case more := <-input.taken:
				if !more {
					return
				}
			case <-p.in.lost:
				return
			}
		}
		if err != nil {
			break
		}
	}
	if !p.handle.TTY {
		p.in.queueCall(p.closeInput)
	}
}

// closeInput closes the input of a process without a terminal.
func (p *Process) closeInput() error {
	if p.input == nil {
		return nil
	}
	fd := p.input.fd
	p.dropInput()
	return p.in.closeAll(fd)
}

// dropInput forgets the input, which has ended.
func (p *Process) dropInput() {
	if p.input != nil && len(p.input.pending) > 0 {
		p.input.taken <- false
	}
	p.input = nil
}

// addEvents adds what to wait for, and reports whether there may be more.
func (p *Process) addEvents(add func(fd int, events uint16, handle func() error)) bool {
	connected := p.input != nil
	for _, o := range p.outputs {
		if !o.isOpen() {
			continue
		}
		connected = true
		if !o.busy {
			add(o.fd, unix.POLLIN, func() error { return p.readOutput(o) })
		}
	}
	if p.input != nil && len(p.input.pending) > 0 && !p.input.held {
		add(p.input.fd, unix.POLLOUT, p.writeInput)
	}
	return connected
}

// isTemporary reports whether err says that a call has to be repeated later.
func isTemporary(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

func (p *Process) readOutput(o *output) error {
	b, err := p.in.line.readStream(o.fd)
	var inside *Error
	switch {
	case errors.As(err, &inside) && isTemporary(err):
		o.drained = p.exited
		return nil
	case err != nil && inside == nil:
		return err
	case len(b) > 0:
		o.busy = true
		o.bytes <- b
		return nil
	}
	o.finishOutput()
	if p.handle.TTY {
		p.dropInput()
	}
	if err == nil {
		return nil
	}
	return p.in.closeAll(o.fd) // a terminal that no process has open
}

func (p *Process) writeInput() error {
	switch {
	case p.input == nil: // the terminal has just ended
		return nil
	case p.handle.TTY:
		return p.typeInput()
	}
	return p.writePlain(len(p.input.pending))
}

// writePlain has the program write n bytes of the pending input.
func (p *Process) writePlain(n int) error {
	input := p.input
	l := &list{}
	write := l.addCall(unix.SYS_WRITE, uint64(input.fd), l.addBytes(input.pending[:n]), uint64(n))
	w, err := p.in.line.doList(l)
	if err != nil {
		return err
	}
	err = w.checkCall("write", write)
	switch {
	case err == nil:
		input.dropPending(min(int(w.getResult(write)), n))
		return nil
	case isTemporary(err):
		return nil
	case p.handle.TTY:
		input.dropPending(len(input.pending))
		return nil
	}
	return p.closeInput()
}

// dropPending drops n bytes of the pending input, and asks for more when there is none.
func (i *input) dropPending(n int) {
	i.pending = i.pending[n:]
	if len(i.pending) == 0 {
		i.taken <- true
	}
}

// recordExit records the exit of the process.
func (p *Process) recordExit(status unix.WaitStatus) error {
	p.status, p.exited = status, true
	if p.handle.TTY {
		return p.in.closeAll(p.handle.Stdin)
	}
	return p.closeInput()
}

// finishProcess announces the exit of the process once all that it had written before has been delivered, and reports whether
// it has.
func (p *Process) finishProcess() (done bool, err error) {
	for _, o := range p.outputs {
		for o.isOpen() && !o.busy && !o.drained {
			if err := p.readOutput(o); err != nil {
				return false, err
			}
		}
		if o.isOpen() && !o.drained {
			return false, nil
		}
	}
	close(p.ended)
	return true, nil
}

// adoptProcess connects a process to streams. Only serveLine calls it.
func (in *Init) adoptProcess(h Handle, streams Streams) *Process {
	p := &Process{in: in, handle: h, ended: make(chan struct{})}
	if status, ok := in.early[h.PID]; ok {
		p.status, p.exited = status, true
		in.ending = append(in.ending, p)
		if h.TTY {
			in.queueCall(func() error { return in.closeAll(h.Stdin) })
		}
	} else {
		in.started[h.PID] = p
	}
	in.connected = append(in.connected, p)
	for i, fd := range []int{h.Stdout, h.Stderr} {
		f := []*os.File{streams.Stdout, streams.Stderr}[i]
		if fd <= 0 {
			_ = f.Close()
			continue
		}
		o := &output{fd: fd, bytes: make(chan []byte, 1)}
		p.outputs[i] = o
		go p.deliverOutput(o, o.bytes, f)
	}
	fd := h.Stdin
	if h.TTY {
		fd = h.Stdout
	}
	if fd <= 0 || p.exited {
		_ = streams.Stdin.Close()
		return p
	}
	p.input = &input{fd: fd, file: streams.Stdin, taken: make(chan bool, 2)}
	go p.feedInput(p.input)
	return p
}

// Adopt returns a process that was started in the sandbox of which this one is a copy. It owns streams, also if it fails.
func (in *Init) Adopt(ctx context.Context, h Handle, streams Streams) (p *Process, err error) {
	err = in.runCall(ctx, func() error { p = in.adoptProcess(h, streams); return nil })
	if err != nil {
		streams.closeFiles()
	}
	return p, err
}

// AdoptNoMore says that there is no more process to adopt. It closes the streams of the others.
func (in *Init) AdoptNoMore(ctx context.Context, others []Handle) error {
	var fds []int
	for _, h := range others {
		fds = append(fds, h.Stdin, h.Stdout, h.Stderr)
	}
	fds = slices.DeleteFunc(fds, func(fd int) bool { return fd <= 0 })
	return in.runCall(ctx, func() error {
		in.early = nil
		return in.closeAll(fds...)
	})
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
			return &Error{"start", unix.ECANCELED}
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
	l := &list{}
	l.addCall(unix.SYS_KILL, uint64(pid), uint64(unix.SIGKILL))
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
	calls  []*step
}

func (l *list) addSearch(places []string) *search {
	const statWords = 18
	s := &search{places: places}
	for _, name := range places {
		s.stats = append(s.stats, l.reserveWords(statWords))
		s.calls = append(s.calls, l.addCall(unix.SYS_NEWFSTATAT, atCWD, l.addText(name), wordAt(s.stats[len(s.stats)-1]), 0))
	}
	return s
}

// atCWD is AT_FDCWD.
const atCWD = 1<<64 - 100

// listFound returns the places that have a regular file: a named pipe would block the program.
func (s *search) listFound(w words) ([]string, error) {
	problem := unix.ENOENT
	var found []string
	for i, name := range s.places {
		switch err := w.checkCall("", s.calls[i]); {
		case err == nil && w.modeOf(s.stats[i])&unix.S_IFMT == unix.S_IFREG:
			found = append(found, name)
		case err == nil || errors.Is(err, unix.EACCES):
			problem = unix.EACCES
		}
	}
	if len(found) == 0 {
		return nil, &Error{Err: problem}
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
	l := &list{}
	s := l.addSearch(cmd.listCandidates())
	var pipes [3]int
	var calls []*step
	for i := range pipes {
		pipes[i] = l.reserveWords(1)
		if i > 0 || cmd.Stdin {
			calls = append(calls, l.addCall(unix.SYS_PIPE2, wordAt(pipes[i]), unix.O_CLOEXEC|unix.O_NONBLOCK))
		}
	}
	w, err := in.line.doList(l)
	if err != nil {
		return nil, nil, err
	}
	ends := func(i int) (reader, writer int) {
		return int(uint32(w.getWord(pipes[i]))), int(uint32(w.getWord(pipes[i]) >> 32))
	}
	d := &descriptors{child: make([]int, 3)}
	d.child[0], d.handle.Stdin = ends(0)
	d.handle.Stdout, d.child[1] = ends(1)
	d.handle.Stderr, d.child[2] = ends(2)
	programs, err := s.listFound(w)
	for _, c := range calls {
		if err == nil {
			err = w.checkCall("streams", c)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, in.closeAll(d.listAll()...))
	}
	return programs, d, nil
}

// prepareTerminal has the program look for the executable of a process and make its terminal.
func (in *Init) prepareTerminal(cmd *Command) ([]string, *descriptors, error) {
	l := &list{}
	s := l.addSearch(cmd.listCandidates())
	open := l.addCall(unix.SYS_OPENAT, atCWD, l.addText("/dev/ptmx"), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC)
	w, err := in.line.doList(l)
	if err == nil {
		err = w.checkCall("terminal", open)
	}
	if err != nil {
		return nil, nil, err
	}
	programs, err := s.listFound(w)
	master := int(w.getResult(open))
	if err != nil {
		return nil, nil, errors.Join(err, in.closeAll(master))
	}
	l = &list{}
	number := l.reserveWords(1)
	calls := []*step{
		l.addCall(unix.SYS_IOCTL, uint64(master), unix.TIOCSPTLCK, l.addBytes(make([]byte, 4))),
		l.addCall(unix.SYS_IOCTL, uint64(master), unix.TIOCGPTN, wordAt(number)),
		l.addCall(unix.SYS_IOCTL, uint64(master), unix.TIOCSWINSZ, l.addBytes(windowSize(cmd.Rows, cmd.Cols))),
	}
	if w, err = in.line.doList(l); err != nil {
		return nil, nil, err
	}
	for _, c := range calls {
		if err := w.checkCall("terminal", c); err != nil {
			return nil, nil, errors.Join(err, in.closeAll(master))
		}
	}
	return programs, &descriptors{handle: Handle{Stdout: master, TTY: true}, tty: fmt.Sprint("/dev/pts/", uint32(w.getWord(number)))}, nil
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
	l := &list{}
	var replica *step
	if d.tty != "" {
		replica = l.addCall(unix.SYS_OPENAT, atCWD, l.addText(d.tty), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	}
	clone := l.addCall(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK|uint64(unix.SIGCHLD))
	for _, fd := range d.child {
		if fd > 0 {
			l.addCall(unix.SYS_CLOSE, uint64(fd))
		}
	}
	answer := l.addAnswer()
	answer.onPositive, answer.onZero, answer.onNegative = finish, finish, finish
	exit := l.addCall(unix.SYS_EXIT_GROUP, 126)
	child := len(l.steps)
	var names []string
	prepare := func(name string, nr uintptr, args ...uint64) {
		l.addCall(nr, args...).onNegative = exit
		names = append(names, name)
	}
	prepare("signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, l.addBytes(make([]byte, 8)), 0, 8)
	prepare("session", unix.SYS_SETSID)
	open := func(name string, flags uint64) {
		prepare("stdin", unix.SYS_CLOSE, 0) // so that open returns this number
		prepare("stdin", unix.SYS_OPENAT, atCWD, l.addText(name), flags)
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
	groups := binary.LittleEndian.AppendUint32(nil, 0)[:0]
	for _, g := range cmd.Groups {
		groups = binary.LittleEndian.AppendUint32(groups, g)
	}
	prepare("groups", unix.SYS_SETGROUPS, uint64(len(cmd.Groups)), l.addBytes(groups))
	prepare("group", unix.SYS_SETRESGID, uint64(cmd.GID), uint64(cmd.GID), uint64(cmd.GID))
	prepare("user", unix.SYS_SETRESUID, uint64(cmd.UID), uint64(cmd.UID), uint64(cmd.UID))
	prepare("setting up cwd", unix.SYS_CHDIR, l.addText(cmd.Dir))
	args, env := l.addTexts(cmd.Args), l.addTexts(cmd.Env)
	execs := len(l.steps)
	for _, name := range programs {
		l.addCall(unix.SYS_EXECVE, l.addText(name), args, env)
	}
	l.steps[len(l.steps)-1].onNegative = exit
	clone.onZero = l.steps[child]
	if err := in.line.sendList(l); err != nil {
		return 0, err
	}
	w, err := in.line.receiveAnswer(len(l.words))
	if err != nil {
		return 0, err
	}
	if replica != nil {
		if err := w.checkCall("terminal", replica); err != nil {
			return 0, err
		}
		d.handle.Stdin = int(w.getResult(replica))
	}
	if err := w.checkCall("fork", clone); err != nil {
		return 0, err
	}
	for i, name := range names {
		if err := w.checkCall(name, l.steps[child+i]); err != nil {
			return 0, err
		}
	}
	var problem error
	for _, exec := range l.steps[execs:] {
		if w.getResult(exec) == notExecuted { // it did not return
			return int(w.getResult(clone)), nil
		}
		if err := w.checkCall("", exec); problem == nil || !errors.Is(err, unix.ENOENT) {
			problem = err
		}
	}
	return 0, problem
}
