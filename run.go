package atoll

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Run runs cmd in the sandbox and waits for it. A non-zero exit is an *ExitError. If ctx ends
// first, Run kills the process and its descendants, waits for their end for up to
// DefaultStopGrace, and returns ctx's error.
func Run(ctx context.Context, sb Sandbox, cmd *Command) error {
	exit, err := runToExit(ctx, sb, cmd)
	if err != nil {
		return err
	}
	if !exit.Success() {
		return &ExitError{Exit: exit}
	}
	return nil
}

// runToExit is like Run, but returns a non-zero exit as an Exit.
func runToExit(ctx context.Context, sb Sandbox, cmd *Command) (Exit, error) {
	p, err := sb.Exec(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	exit, err := p.Wait(ctx)
	if ctx.Err() != nil {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultStopGrace)
		defer cancel()
		_ = p.Signal(kill, SIGKILL) // fails if the process has just ended
		_, _ = p.Wait(kill)         // then nothing writes to cmd's writers
		return Exit{}, ctx.Err()
	}
	return exit, err
}

// An ExitError reports an unsuccessful exit of a command.
type ExitError struct {
	Exit   Exit
	Stderr []byte // the end of stderr, at most 32 KiB, if Output ran the command
}

// Error returns the exit and the last line of Stderr, if there is one.
func (e *ExitError) Error() string {
	lines := strings.Split(strings.TrimSpace(string(e.Stderr)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return e.Exit.String() + ": " + last
	}
	return e.Exit.String()
}

// Output runs cmd like Run and returns its stdout, which is not limited in size.
func Output(ctx context.Context, sb Sandbox, cmd *Command) ([]byte, error) {
	var stdout bytes.Buffer
	stderr := Tail{Limit: 32 << 10}
	out, errs := &closableWriter{w: &stdout}, &closableWriter{w: &stderr}
	c := *cmd
	c.Stdout = out
	if c.Stderr == nil {
		c.Stderr = errs
	}
	err := Run(ctx, sb, &c)
	out.closeWriter()
	errs.closeWriter()
	if exit, ok := err.(*ExitError); ok {
		exit.Stderr = stderr.Bytes()
	}
	return stdout.Bytes(), err
}

// A Result is the exit and the output of a command that Capture ran.
type Result struct {
	Exit
	Stdout, Stderr                   []byte
	StdoutTruncated, StderrTruncated bool // the command printed more than the limit
}

// String returns the exit and the beginning of each stream.
func (r Result) String() string {
	return fmt.Sprintf("%s, stdout %s, stderr %s", r.Exit, quotePrefix(r.Stdout, r.StdoutTruncated), quotePrefix(r.Stderr, r.StderrTruncated))
}

func quotePrefix(b []byte, truncated bool) string {
	const maxLen = 200
	if len(b) > maxLen {
		b, truncated = b[:maxLen], true
	}
	if truncated {
		return fmt.Sprintf("%q...", b)
	}
	return fmt.Sprintf("%q", b)
}

// Capture runs cmd and returns its exit and the first limit bytes of each stream. Unlike Run, it
// returns a non-zero exit in the Result. limit 0 means DefaultOutputLimit.
func Capture(ctx context.Context, sb Sandbox, cmd *Command, limit int64) (Result, error) {
	if limit <= 0 {
		limit = DefaultOutputLimit
	}
	stdout, stderr := Head{Limit: limit}, Head{Limit: limit}
	out, errs := &closableWriter{w: &stdout}, &closableWriter{w: &stderr}
	c := *cmd
	c.Stdout, c.Stderr = out, errs
	exit, err := runToExit(ctx, sb, &c)
	out.closeWriter()
	errs.closeWriter()
	return Result{
		Exit:   exit,
		Stdout: stdout.Bytes(), StdoutTruncated: stdout.Truncated(),
		Stderr: stderr.Bytes(), StderrTruncated: stderr.Truncated(),
	}, err
}

// A closableWriter is a writer that a process uses until close. If Wait fails, the process may
// still write later; close then protects w, which belongs to the caller again.
type closableWriter struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
}

func (l *closableWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, io.ErrClosedPipe
	}
	return l.w.Write(p)
}

// closeWriter makes all later writes fail. When it returns, no write is in progress.
func (l *closableWriter) closeWriter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// Head is a writer that retains the first Limit bytes.
type Head struct {
	Limit     int64
	buf       []byte
	truncated bool
}

// Write always succeeds.
func (h *Head) Write(p []byte) (int, error) {
	keep := max(0, min(int64(len(p)), h.Limit-int64(len(h.buf))))
	h.buf = append(h.buf, p[:keep]...)
	h.truncated = h.truncated || keep < int64(len(p))
	return len(p), nil
}

// Bytes returns the retained bytes. The result is valid until the next Write.
func (h *Head) Bytes() []byte { return h.buf }

// Truncated reports whether Write dropped bytes.
func (h *Head) Truncated() bool { return h.truncated }

// Tail is a writer that retains the last Limit bytes.
type Tail struct {
	Limit int
	buf   []byte
}

// Write always succeeds.
func (t *Tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.Limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// Bytes returns the retained bytes. The result is valid until the next Write.
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

// WriteFile stores data in a file in the sandbox and creates missing parent directories. mode 0
// means the mode of the replaced file, or 0644 for a new one.
func WriteFile(ctx context.Context, sb Sandbox, name string, data []byte, mode uint32) error {
	_, err := Files(sb).Write(ctx, name, bytes.NewReader(data), WriteOptions{Mode: mode})
	return err
}

// Limits for the commands of DetectShell, which may run in a hostile sandbox.
const (
	shellTimeout = 5 * time.Second // for each command
	shellOutput  = 4 << 10
)

// DetectShell returns the shell for a terminal of user ("" means the default user). It returns
// $SHELL unless that is empty or /bin/false, or else /bin/bash if that works, or else /bin/sh.
//
// To find out, DetectShell runs one or two commands in the sandbox, and kills each after 5
// seconds. It ignores a command that times out or prints more than one line. It fails only if the
// sandbox cannot run anything.
func DetectShell(ctx context.Context, sb Sandbox, user string, env []string) (string, error) {
	shell, err := shellVariable(ctx, sb, user, env)
	if err != nil {
		return "", err
	}
	if shell != "" && shell != "/bin/false" {
		return shell, nil
	}
	within, cancel := context.WithTimeout(ctx, shellTimeout)
	defer cancel()
	err = Run(within, sb, &Command{Args: []string{"/bin/bash", "-c", ":"}, User: user})
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err == nil {
		return "/bin/bash", nil
	}
	return "/bin/sh", nil
}

// shellVariable returns $SHELL in the sandbox, or "" if it is unknown. It fails only if the
// sandbox cannot run anything.
func shellVariable(ctx context.Context, sb Sandbox, user string, env []string) (string, error) {
	within, cancel := context.WithTimeout(ctx, shellTimeout)
	defer cancel()
	res, err := Capture(within, sb, &Command{Args: []string{"sh", "-c", "echo $SHELL"}, User: user, Env: env}, shellOutput)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case within.Err() != nil, errors.Is(err, ErrExecFailed):
		return "", nil
	case err != nil:
		return "", err
	}
	shell := strings.TrimSpace(string(res.Stdout))
	if res.StdoutTruncated || strings.ContainsAny(shell, "\n\x00") {
		return "", nil
	}
	return shell, nil
}

// HTTPClient returns a client that sends every request to a TCP port in the sandbox, by Dial. The
// host in the URL does not matter: use "http://localhost/health". The client follows redirects
// inside the sandbox only, and uses no proxy.
//
// Each request has its own connection, which ends with the response body; the client needs no
// closing. The client has no timeout, because event streams do not end; use the request's
// context. If Dial fails, the error of the request has the kind of Dial's error.
func HTTPClient(sb Sandbox, port int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, sb, port) },
		DisableKeepAlives: true,
	}}
}

var _ error = (*ExitError)(nil)

// Code is a program that ExecuteCode runs.
type Code struct {
	// Language is python (or python3), node (or javascript, js), bash or sh, in upper or lower
	// case.
	Language string `json:"language"`
	// Code is the text of the program: at most MaxCode bytes, without NUL bytes.
	Code string `json:"code"`
	// Env, Dir, User and Timeout have the same meaning as in Command.
	Env     []string `json:"env,omitempty"`
	Dir     string   `json:"dir,omitempty"`    // working directory, as in Command
	User    string   `json:"user,omitempty"`   // user, as in Command
	Timeout Duration `json:"timeout,omitzero"` // time limit, as in Command
}

// MaxCode is the maximum length of Code.Code in bytes.
const MaxCode = 10 << 20

// ExecuteCode runs a program in the sandbox and waits for it. The program's stdin is empty. The
// Result has the first DefaultOutputLimit bytes of each stream, as with Capture. If the language
// is unknown, the Result has exit code -1 and a message on stderr, and the error is nil. The same
// holds if the program cannot be started: the code is 127 if the sandbox has no interpreter for
// the language, and 126 if Exec fails with ErrExecFailed. Kinds: the others of Sandbox.Exec;
// ErrInvalid.
func ExecuteCode(ctx context.Context, sb Sandbox, c *Code) (Result, error) {
	i, ok := interpreters[strings.ToLower(c.Language)]
	switch {
	case !ok:
		return Result{Exit: Exit{Code: -1}, Stderr: []byte("unsupported language: " + c.Language)}, nil
	case len(c.Code) > MaxCode:
		return Result{}, Errorf("execute code", sb.ID(), ErrInvalid, "code of %d bytes exceeds the limit of %d bytes", len(c.Code), MaxCode)
	case strings.ContainsRune(c.Code, 0):
		return Result{}, Errorf("execute code", sb.ID(), ErrInvalid, "the code contains a NUL byte")
	}
	cmd := &Command{Env: c.Env, Dir: c.Dir, User: c.User, Timeout: c.Timeout}
	if len(c.Code) <= maxCodeArgument {
		cmd.Args = append(i.argument[:len(i.argument):len(i.argument)], c.Code)
	} else {
		cmd.Args, cmd.Stdin = i.stdin, strings.NewReader(c.Code)
	}
	res, err := Capture(ctx, sb, cmd, 0)
	if code := StartFailure(err); code != 0 {
		return Result{Exit: Exit{Code: code}, Stderr: []byte(causeText(err))}, nil
	}
	return res, err
}

// StartFailure returns the exit code by which shells report that a program could not be started:
// 127 for ErrCommandNotFound, 126 for ErrExecFailed, 0 for nil and all other errors.
func StartFailure(err error) int {
	switch KindOf(err) {
	case ErrCommandNotFound:
		return 127
	case ErrExecFailed:
		return 126
	}
	return 0
}

// causeText returns the text of err without its operation and id.
func causeText(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

// maxCodeArgument is the maximum size in bytes of code that is passed as an argument. Linux
// accepts 128 KiB in one argument, and a provider may need to quote it for a shell.
const maxCodeArgument = 64 << 10

// An interpreter holds two command lines for a language: one to which the code is appended as an
// argument, and one that reads the code from stdin.
type interpreter struct{ argument, stdin []string }

var (
	pythonInterpreter = interpreter{[]string{"python3", "-c"}, []string{"python3", "-"}}
	nodeInterpreter   = interpreter{[]string{"node", "-e"}, []string{"node", "-"}}

	interpreters = map[string]interpreter{
		"python": pythonInterpreter, "python3": pythonInterpreter,
		"node": nodeInterpreter, "javascript": nodeInterpreter, "js": nodeInterpreter,
		"bash": {[]string{"bash", "-c"}, []string{"bash", "-c", codeOnStdin}},
		"sh":   {[]string{"sh", "-c"}, []string{"sh", "-c", codeOnStdin}},
	}
)

// codeOnStdin makes a shell read the complete script before it runs it. Shells read a script
// piece by piece from stdin, so that a command of the script could read the rest of it. The text
// begins with ": code", which makes it recognizable in lists of processes.
const codeOnStdin = `: code; atoll_code=$(cat) || exit; eval "unset atoll_code; $atoll_code"`

// CreateWithRetry is like Provider.Create, but retries while Create fails with ErrExhausted and a
// RetryAfter time, which it waits for between attempts. When ctx ends, it returns the error of
// the last attempt.
func CreateWithRetry(ctx context.Context, p Provider, spec *Spec) (Sandbox, error) {
	for {
		sb, err := p.Create(ctx, spec)
		after, known := RetryAfter(err)
		if KindOf(err) != ErrExhausted || !known {
			return sb, err
		}
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}
