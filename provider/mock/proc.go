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

// A Program acts out a command and returns its exit code. It ends soon after
// p.Context does.
type Program func(p *Proc) int

// A Proc is a process as its Program sees it.
type Proc struct {
	Args []string
	Env  []string
	Dir  string // working directory, as named inside
	UID  int
	GID  int
	PID  int

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	world   *world
	box     string // id of its sandbox
	place   string // what the sandbox calls the directory dir
	dir     string
	tty     bool
	files   [3]*os.File
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when the Program has returned
	mu      sync.Mutex
	exit    *atoll.Exit
	signals map[atoll.Signal]chan atoll.Signal
	kids    []*Proc
}

// Context ends when the process is killed.
func (p *Proc) Context() context.Context { return p.ctx }

// Notify makes sigs arrive on the channel that it returns instead of doing
// what they do by default. One who never reads the channel ignores them.
func (p *Proc) Notify(sigs ...atoll.Signal) <-chan atoll.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan atoll.Signal, 8)
	for _, sig := range sigs {
		p.signals[sig] = c
	}
	return c
}

// Signal sends the process a signal.
func (p *Proc) Signal(sig atoll.Signal) error {
	p.mu.Lock()
	c := p.signals[sig]
	p.mu.Unlock()
	switch {
	case sig == atoll.SIGKILL:
		p.die(killed(sig))
	case c != nil:
		select {
		case c <- sig:
		default: // like the kernel, which does not queue them either
		}
	case slices.Contains([]atoll.Signal{17, 18, 19, 20, 21, 22, 23, 28}, sig): // ignored, or would only stop it
	default:
		p.die(killed(sig))
	}
	return nil
}

func killed(sig atoll.Signal) atoll.Exit { return atoll.Exit{Code: 128 + int(sig), Signal: sig} }

// run runs the Program.
func (p *Proc) run(program Program) {
	defer close(p.done)
	code := program(p)
	p.die(atoll.Exit{Code: code & 255})
}

// die gives the process its exit, unless it has one, and closes its streams.
func (p *Proc) die(exit atoll.Exit) {
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
	p.world.gone(p)
}

// fork starts a child that has the process's stdout and stderr.
func (p *Proc) fork(program Program) (*Proc, error) {
	stdout, err := dup(p.files[1])
	if err != nil {
		return nil, err
	}
	stderr, err := dup(p.files[2])
	if err != nil {
		stdout.Close()
		return nil, err
	}
	kid := p.world.newProc(p, [3]*os.File{nil, stdout, stderr})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil && p.exit.Signal == atoll.SIGKILL {
		kid.die(killed(atoll.SIGKILL))
	}
	p.kids = append(p.kids, kid)
	go kid.run(program)
	return kid, nil
}

// handle is a Proc as the process table sees it.
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

// Signal implements process.Handle. A terminal that is hung up on tells what it
// has in the foreground as well, which is all of it.
func (h handle) Signal(sig atoll.Signal) error {
	var kids []*Proc
	if h.tty && sig == atoll.SIGHUP {
		h.mu.Lock()
		kids = h.kids
		h.mu.Unlock()
	}
	err := h.Proc.Signal(sig) // first: it may wait for one of the others
	for _, kid := range kids {
		_ = kid.Signal(sig)
	}
	return err
}

// Kill implements process.Handle.
func (h handle) Kill() error {
	h.Proc.kill()
	return nil
}

func (p *Proc) kill() {
	p.die(killed(atoll.SIGKILL))
	p.mu.Lock()
	kids := p.kids
	p.mu.Unlock()
	for _, kid := range kids {
		kid.kill()
	}
}

// Input implements process.Terminal: no process of the kernel's has the
// terminal, so that it signals none.
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
