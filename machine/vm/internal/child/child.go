// Package child runs the programs of hypervisors: each ends with the process that started it,
// however that ends, and their output is bounded.
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
	cmd        *exec.Cmd
	kill       func(*os.Process)
	stderrTail tail
	done       chan struct{}
	err        error // of the end; set before done is closed
}

// drainTimeout is the time in which the output of a program must arrive after its end: a descendant
// may hold the pipe open.
const drainTimeout = 5 * time.Second

// Start starts cmd, sets its WaitDelay, and retains the end of its stderr, besides writing it to
// cmd.Stderr. The program has a session of its own: it gets no signals of our terminal.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.stderrTail
	} else {
		cmd.Stderr = io.MultiWriter(&p.stderrTail, cmd.Stderr)
	}
	cmd.WaitDelay = drainTimeout
	started := make(chan error)
	go p.runProgram(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// runProgram starts the program and waits for it on one thread. On Linux the kernel ends the
// program with that thread, not with the process; so the thread lives as long as the program.
func (p *Process) runProgram(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	kill, release, err := bindToParent(p.cmd)
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
		err = fmt.Errorf("%s has ended: %w%s", p.cmd.Path, err, p.stderrTail.errorSuffix())
	}
	p.err = err
	close(p.done)
}

// PID returns the process id of the program; after its end another process may have the id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil if the program ended with code 0, else its exit and the end of its stderr. Call
// it after Done is closed.
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

// A tail retains the end of the bytes written to it.
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

// errorSuffix returns the bytes as the end of an error's text; "" if there are none.
func (t *tail) errorSuffix() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(bytes.ToValidUTF8(t.buf, []byte("?"))))
	if text == "" {
		return ""
	}
	return ": " + text
}
