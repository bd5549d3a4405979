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

// Run runs cmd in the sandbox and waits for it. When ctx ends first, the
// process and its descendants are killed, waited for as long as that can take,
// and ctx's error is returned. A non-zero exit is an *ExitError.
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

// runToExit is Run, but a non-zero exit is no error.
func runToExit(ctx context.Context, sb Sandbox, cmd *Command) (Exit, error) {
	p, err := sb.Exec(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	exit, err := p.Wait(ctx)
	if ctx.Err() != nil {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultStopGrace)
		defer cancel()
		_ = p.Signal(kill, SIGKILL) // it may just have ended
		_, _ = p.Wait(kill)         // cmd's writers are the caller's again
		return Exit{}, ctx.Err()
	}
	return exit, err
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

// String prints how the command ended and how each stream begins.
func (r Result) String() string {
	return fmt.Sprintf("%s, stdout %s, stderr %s", r.Exit, excerpt(r.Stdout, r.StdoutTruncated), excerpt(r.Stderr, r.StderrTruncated))
}

func excerpt(b []byte, truncated bool) string {
	const most = 200
	if len(b) > most {
		b, truncated = b[:most], true
	}
	if truncated {
		return fmt.Sprintf("%q...", b)
	}
	return fmt.Sprintf("%q", b)
}

// Capture runs cmd and keeps the first limit bytes of each stream. Unlike Run
// it returns a non-zero exit in the Result. limit 0 means DefaultOutputLimit.
func Capture(ctx context.Context, sb Sandbox, cmd *Command, limit int64) (Result, error) {
	if limit <= 0 {
		limit = DefaultOutputLimit
	}
	stdout, stderr := Head{Limit: limit}, Head{Limit: limit}
	out, errs := &loan{w: &stdout}, &loan{w: &stderr}
	c := *cmd
	c.Stdout, c.Stderr = out, errs
	exit, err := runToExit(ctx, sb, &c)
	out.end()
	errs.end()
	return Result{
		Exit:   exit,
		Stdout: stdout.Bytes(), StdoutTruncated: stdout.Truncated(),
		Stderr: stderr.Bytes(), StderrTruncated: stderr.Truncated(),
	}, err
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

// Head is a writer that keeps the first Limit bytes.
type Head struct {
	Limit     int64
	buf       []byte
	truncated bool
}

// Write never fails.
func (h *Head) Write(p []byte) (int, error) {
	keep := max(0, min(int64(len(p)), h.Limit-int64(len(h.buf))))
	h.buf = append(h.buf, p[:keep]...)
	h.truncated = h.truncated || keep < int64(len(p))
	return len(p), nil
}

// Bytes returns what is kept; it is valid until the next Write.
func (h *Head) Bytes() []byte { return h.buf }

// Truncated reports whether more was written than is kept.
func (h *Head) Truncated() bool { return h.truncated }

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

// Bounds on what DetectShell takes of a sandbox that may be hostile.
const (
	shellTimeout = 5 * time.Second // for each command
	shellOutput  = 4 << 10
)

// DetectShell finds the shell for a terminal of the given user ("" for the
// default one): $SHELL unless empty or /bin/false, else /bin/bash, else
// /bin/sh. It fails only when the sandbox cannot run anything. To find out it
// runs one or two commands there, by Exec. One that takes longer than 5 seconds
// is killed; that, or more output than a line, is no answer.
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

// shellVariable is $SHELL as a shell sees it, "" when there is no telling. It
// fails when the sandbox cannot run anything.
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

// HTTPClient returns a client whose every request goes to a TCP port inside the
// sandbox, by Dial, whatever host its URL names: "http://localhost/health" will
// do. Redirects do not lead out of the sandbox either, and no proxy is used.
//
// Each request has a connection of its own, which ends with its body: nothing is
// left behind, and the client needs no closing. No time limits a request, because
// a stream of events has no end: its context does. The error of a request has
// Dial's kind where that failed.
func HTTPClient(sb Sandbox, port int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, sb, port) },
		DisableKeepAlives: true,
	}}
}

var _ error = (*ExitError)(nil)

// Code is a program, for ExecuteCode.
type Code struct {
	// Language is python (or python3), node (javascript, js), bash or sh, in capitals
	// or not.
	Language string `json:"language"`
	// Code is the program's text, of up to MaxCode bytes, without NUL bytes.
	Code string `json:"code"`
	// Env, Dir, User and Timeout are those of a Command.
	Env     []string `json:"env,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	User    string   `json:"user,omitempty"`
	Timeout Duration `json:"timeout,omitzero"`
}

// MaxCode is how long the text of a Code may be.
const MaxCode = 10 << 20

// ExecuteCode runs a program, which reads the end of file from stdin, and waits for it
// as Capture does, which keeps the first DefaultOutputLimit bytes of what it prints. A
// language that is none of Code's is no error: it gives exit code -1 and says so on
// stderr. Kinds: as Sandbox.Exec has them, ErrCommandNotFound where the sandbox has
// nothing that runs the language; ErrInvalid.
func ExecuteCode(ctx context.Context, sb Sandbox, c *Code) (Result, error) {
	i, ok := interpreters[strings.ToLower(c.Language)]
	switch {
	case !ok:
		return Result{Exit: Exit{Code: -1}, Stderr: []byte("unsupported language: " + c.Language)}, nil
	case len(c.Code) > MaxCode:
		return Result{}, Errorf("execute code", sb.ID(), ErrInvalid, "the code has %d bytes: it may have %d", len(c.Code), MaxCode)
	case strings.ContainsRune(c.Code, 0):
		return Result{}, Errorf("execute code", sb.ID(), ErrInvalid, "the code contains a NUL byte")
	}
	cmd := &Command{Env: c.Env, Dir: c.Dir, User: c.User, Timeout: c.Timeout}
	if len(c.Code) <= maxCodeArgument {
		cmd.Args = append(i.argument[:len(i.argument):len(i.argument)], c.Code)
	} else {
		cmd.Args, cmd.Stdin = i.stdin, strings.NewReader(c.Code)
	}
	return Capture(ctx, sb, cmd, 0)
}

// maxCodeArgument is up to which size code is an argument. Linux takes 128 KiB in one;
// a provider may have to quote it for a shell.
const maxCodeArgument = 64 << 10

// An interpreter is what runs a language: with the code as one more argument, or on stdin.
type interpreter struct{ argument, stdin []string }

var (
	python = interpreter{[]string{"python3", "-c"}, []string{"python3", "-"}}
	node   = interpreter{[]string{"node", "-e"}, []string{"node", "-"}}

	interpreters = map[string]interpreter{
		"python": python, "python3": python,
		"node": node, "javascript": node, "js": node,
		"bash": {[]string{"bash", "-c"}, []string{"bash", "-c", codeOnStdin}},
		"sh":   {[]string{"sh", "-c"}, []string{"sh", "-c", codeOnStdin}},
	}
)

// codeOnStdin is for shells, which read scripts piece by piece: what such a script runs
// would read the rest of it. It begins with its name, which tells who lists processes.
const codeOnStdin = `: code; atoll_code=$(cat) || exit; eval "unset atoll_code; $atoll_code"`

// CreateInTime is Create, tried again as long as there is no room for the sandbox,
// each time after what RetryAfter says. When ctx ends first, the error is that of the
// last try.
func CreateInTime(ctx context.Context, p Provider, spec *Spec) (Sandbox, error) {
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
