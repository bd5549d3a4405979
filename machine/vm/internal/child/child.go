// Package child runs the programs of hypervisors: each ends with the process that has
// started it, however that ends, and what it prints is kept within bounds.
package child

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A Process is a program that runs, or has ended. All methods may be called at once.
type Process struct {
	cmd  *exec.Cmd
	kill func(*os.Process)
	said tail
	done chan struct{}
	err  error // of the end; there when done is closed
}

// drain is how long what a program has printed may take to arrive once it has ended: a
// descendant of its may hold the other end.
const drain = 2 * time.Second

// Start starts cmd, whose WaitDelay it sets, and listens to its stderr besides Stderr.
// The program is in a session of its own: what is typed at our terminal is not for it.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.said
	} else {
		cmd.Stderr = io.MultiWriter(&p.said, cmd.Stderr)
	}
	cmd.WaitDelay = drain
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the program and waits for it on one thread. On Linux it is the end of that
// thread, and not of the process, with which the kernel ends the program; so it lives as
// long as the program does.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	kill, release, err := bind(p.cmd)
	if err != nil {
		started <- err
		return
	}
	defer release()
	p.kill = kill
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	err = p.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%s has ended: %w%s", p.cmd.Path, err, p.said.quoted())
	}
	p.err = err
	close(p.done)
}

// PID is the program's process id, which is another's when it has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is nil if the program has ended with code 0, else what became of it and what it
// last said on stderr. Done is closed.
func (p *Process) Err() error { return p.err }

// Kill ends the program at once, and returns when it has ended.
func (p *Process) Kill() {
	select {
	case <-p.done:
		return
	default:
	}
	p.kill(p.cmd.Process)
	<-p.done
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4 << 10

// Write implements io.Writer. It never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

// quoted is what an error says of it; "" when there is nothing.
func (t *tail) quoted() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(bytes.ToValidUTF8(t.buf, []byte("?"))))
	if text == "" {
		return ""
	}
	return ": " + text
}
