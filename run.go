package atoll

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// Run runs cmd in the sandbox and waits for it. When ctx ends first, the
// process and its descendants are killed, waited for as long as that can take,
// and ctx's error is returned. A non-zero exit is an *ExitError.
func Run(ctx context.Context, sb Sandbox, cmd *Command) error {
	p, err := sb.Exec(ctx, cmd)
	if err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if ctx.Err() != nil {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultStopGrace)
		defer cancel()
		_ = p.Signal(kill, SIGKILL) // it may just have ended
		_, _ = p.Wait(kill)         // cmd's writers are the caller's again
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	if !exit.Success() {
		return &ExitError{Exit: exit}
	}
	return nil
}

// An ExitError says that a command ran and did not succeed.
type ExitError struct {
	Exit   Exit
	Stderr []byte // what Output saw of it, at most 32 KiB
}

// Error prints the exit, and the last line of stderr when there is one.
func (e *ExitError) Error() string {
	lines := strings.Split(strings.TrimSpace(string(e.Stderr)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return e.Exit.String() + ": " + last
	}
	return e.Exit.String()
}

// Output runs cmd as Run does and returns what it printed on stdout, however
// much that is.
func Output(ctx context.Context, sb Sandbox, cmd *Command) ([]byte, error) {
	var stdout bytes.Buffer
	stderr := Tail{Limit: 32 << 10}
	out, errs := &loan{w: &stdout}, &loan{w: &stderr}
	c := *cmd
	c.Stdout = out
	if c.Stderr == nil {
		c.Stderr = errs
	}
	err := Run(ctx, sb, &c)
	out.end()
	errs.end()
	if exit, ok := err.(*ExitError); ok {
		exit.Stderr = stderr.Bytes()
	}
	return stdout.Bytes(), err
}

// A Result is what Capture saw of a command.
type Result struct {
	Exit
	Stdout, Stderr                   []byte
	StdoutTruncated, StderrTruncated bool // more was printed than the limit
}

// Capture runs cmd and keeps the first limit bytes of each stream. Unlike Run
// it returns a non-zero exit in the Result. limit 0 means DefaultOutputLimit.
func Capture(ctx context.Context, sb Sandbox, cmd *Command, limit int64) (Result, error) {
	if limit <= 0 {
		limit = DefaultOutputLimit
	}
	stdout, stderr := head{limit: limit}, head{limit: limit}
	out, errs := &loan{w: &stdout}, &loan{w: &stderr}
	c := *cmd
	c.Stdout, c.Stderr = out, errs
	err := Run(ctx, sb, &c)
	out.end()
	errs.end()
	res := Result{
		Stdout: stdout.buf.Bytes(), StdoutTruncated: stdout.truncated,
		Stderr: stderr.buf.Bytes(), StderrTruncated: stderr.truncated,
	}
	if exit, ok := err.(*ExitError); ok {
		res.Exit, err = exit.Exit, nil
	}
	return res, err
}

// A loan is a writer that is lent to a process until its end: when a Wait
// failed, what the process still prints comes too late.
type loan struct {
	mu    sync.Mutex
	w     io.Writer
	ended bool
}

func (l *loan) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, io.ErrClosedPipe
	}
	return l.w.Write(p)
}

// end returns when nothing is written any longer.
func (l *loan) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// head keeps the first limit bytes written to it.
type head struct {
	buf       bytes.Buffer
	limit     int64
	truncated bool
}

func (h *head) Write(p []byte) (int, error) {
	keep := min(int64(len(p)), h.limit-int64(h.buf.Len()))
	h.buf.Write(p[:keep])
	h.truncated = h.truncated || keep < int64(len(p))
	return len(p), nil
}

// Tail is a writer that keeps the last Limit bytes.
type Tail struct {
	Limit int
	buf   []byte
}

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.Limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// Bytes returns what is kept; it is valid until the next Write.
func (t *Tail) Bytes() []byte { return t.buf }

// ReadFile returns the content of a file in the sandbox.
func ReadFile(ctx context.Context, sb Sandbox, name string) ([]byte, error) {
	r, _, err := Files(sb).Read(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// WriteFile stores data in a file in the sandbox, making its parent
// directories. mode 0 means that of the file replaced, else 0644.
func WriteFile(ctx context.Context, sb Sandbox, name string, data []byte, mode uint32) error {
	_, err := Files(sb).Write(ctx, name, bytes.NewReader(data), WriteOptions{Mode: mode})
	return err
}

// DetectShell finds the shell for a terminal of the given user ("" for the
// default one): $SHELL unless empty or /bin/false, else /bin/bash, else
// /bin/sh. It fails only when the sandbox cannot run anything. To find out it
// runs one or two commands there, by Exec.
func DetectShell(ctx context.Context, sb Sandbox, user string, env []string) (string, error) {
	out, err := Output(ctx, sb, &Command{Args: []string{"sh", "-c", "echo $SHELL"}, User: user, Env: env})
	if k := KindOf(err); err != nil && k != ErrCommandNotFound && k != ErrExecFailed {
		if _, exited := err.(*ExitError); !exited {
			return "", err
		}
	}
	if shell := strings.TrimSpace(string(out)); shell != "" && shell != "/bin/false" {
		return shell, nil
	}
	if Run(ctx, sb, &Command{Args: []string{"/bin/bash", "-c", ":"}, User: user}) == nil {
		return "/bin/bash", nil
	}
	return "/bin/sh", nil
}

// HTTPClient returns a client all of whose connections go to a TCP port inside
// the sandbox, whatever the URL's host. The caller closes its idle connections
// when done with it.
func HTTPClient(sb Sandbox, port int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, sb, port) },
	}}
}

var _ error = (*ExitError)(nil)
