package mock

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A Program implements a command and returns its exit code. It must return soon after p.Context ends.
type Program func(p *Proc) int

// A Proc is a process, as seen by its Program.
type Proc struct {
	Args []string
	Env  []string
	Dir  string // working directory, as the sandbox names it
	UID  int
	GID  int
	PID  int

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	backend   *backend
	sandboxID string // id of its sandbox
	prefix    string // the sandbox's name for dir
	dir       string // the data volume on the machine
	tty       bool
	files     [3]*os.File
	ctx       context.Context
	cancel    context.CancelFunc
	done      chan struct{} // closed when the Program has returned
	mu        sync.Mutex
	exit      *atoll.Exit
	signals   map[atoll.Signal]chan atoll.Signal
	children  []*Proc
}

// Context returns a context that ends when the process ends.
func (p *Proc) Context() context.Context { return p.ctx }

// Notify sends sigs to the returned channel, instead of their default action. To ignore signals, do
// not read the channel.
func (p *Proc) Notify(sigs ...atoll.Signal) <-chan atoll.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan atoll.Signal, 8)
	for _, sig := range sigs {
		p.signals[sig] = c
	}
	return c
}

// Signal sends a signal to the process. It never fails.
func (p *Proc) Signal(sig atoll.Signal) error {
	p.mu.Lock()
	c := p.signals[sig]
	p.mu.Unlock()
	switch {
	case sig == atoll.SIGKILL:
		p.endProcess(killedExit(sig))
	case c != nil:
		select {
		case c <- sig:
		default: // like the kernel, do not queue them
		}
	case slices.Contains([]atoll.Signal{17, 18, 19, 20, 21, 22, 23, 28}, sig): // ignored by default, or stop signals
	default:
		p.endProcess(killedExit(sig))
	}
	return nil
}

func killedExit(sig atoll.Signal) atoll.Exit { return atoll.Exit{Code: 128 + int(sig), Signal: sig} }

// runProgram runs the Program and ends the process with its exit code.
func (p *Proc) runProgram(program Program) {
	defer close(p.done)
	code := program(p)
	p.endProcess(atoll.Exit{Code: code & 255})
}

// endProcess sets the exit of the process, unless it has one, and closes its streams.
func (p *Proc) endProcess(exit atoll.Exit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil {
		return
	}
	p.exit = &exit
	p.cancel()
	for _, f := range p.files {
		if f != nil {
			_ = f.Close()
		}
	}
	p.backend.deleteProc(p)
}

// startChild starts a child with the process's stdout and stderr.
func (p *Proc) startChild(program Program) (*Proc, error) {
	stdout, err := duplicateFile(p.files[1])
	if err != nil {
		return nil, err
	}
	stderr, err := duplicateFile(p.files[2])
	if err != nil {
		stdout.Close()
		return nil, err
	}
	child := p.backend.newProc(p, [3]*os.File{nil, stdout, stderr})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil && p.exit.Signal == atoll.SIGKILL {
		child.endProcess(killedExit(atoll.SIGKILL))
	}
	p.children = append(p.children, child)
	go child.runProgram(program)
	return child, nil
}

// A handle is the process.Handle of a Proc.
type handle struct{ *Proc }

// PID implements process.Handle.
func (h handle) PID() int { return h.Proc.PID }

// Wait implements process.Handle.
func (h handle) Wait() atoll.Exit {
	<-h.done
	h.mu.Lock()
	defer h.mu.Unlock()
	return *h.exit
}

// Signal implements process.Handle. A hangup of the terminal goes to the foreground processes as well,
// which are all children.
func (h handle) Signal(sig atoll.Signal) error {
	var children []*Proc
	if h.tty && sig == atoll.SIGHUP {
		h.mu.Lock()
		children = h.children
		h.mu.Unlock()
	}
	err := h.Proc.Signal(sig) // before its children: it may wait for one of them
	for _, child := range children {
		_ = child.Signal(sig)
	}
	return err
}

// Kill implements process.Handle.
func (h handle) Kill() error {
	h.Proc.killTree()
	return nil
}

// killTree kills the process and its descendants.
func (p *Proc) killTree() {
	p.endProcess(killedExit(atoll.SIGKILL))
	p.mu.Lock()
	children := p.children
	p.mu.Unlock()
	for _, child := range children {
		child.killTree()
	}
}

// Input implements process.Terminal. The terminal belongs to no kernel process, so Input sends the
// signals of control characters itself.
func (h handle) Input(master *os.File, b []byte) error {
	for _, c := range b {
		switch c {
		case 3:
			_ = h.Signal(atoll.SIGINT)
		case 26:
			_ = h.Signal(atoll.SIGTSTP)
		case 28:
			_ = h.Signal(atoll.SIGQUIT)
		}
	}
	_, err := master.Write(b)
	return err
}

// Resized implements process.Terminal.
func (h handle) Resized() { _ = h.Signal(atoll.SIGWINCH) }

var (
	_ process.Handle   = handle{}
	_ process.Terminal = handle{}
)
