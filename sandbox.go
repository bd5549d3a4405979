package atoll

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// A Sandbox is one isolated environment. The value is a handle: it holds no resources and needs
// no closing. After the sandbox was removed, the methods of its handles fail with ErrNotFound.
// Many handles may refer to one sandbox. All methods are safe for concurrent use.
type Sandbox interface {
	// ID returns the id, 32 lower-case hex digits. It never changes.
	ID() string

	// Status returns the current state from the provider. Kinds: ErrNotFound.
	Status(ctx context.Context) (Status, error)

	// Start starts a created, stopped or failed sandbox. Starting a running sandbox does nothing.
	// Kinds: ErrNotFound, ErrUnsupported (it was started before, and the provider lacks
	// Caps.Restart), ErrConflict (paused), ErrUnavailable.
	Start(ctx context.Context) error

	// Stop sends SIGTERM to every process, and SIGKILL to the remaining ones after grace. The
	// sandbox remains, with the files that Caps.Durable promises. grace 0 kills at once; a
	// negative grace means DefaultStopGrace. If Stop cannot save the files, it fails and the
	// sandbox keeps running. Stopping a stopped sandbox does nothing. Kinds: ErrNotFound,
	// ErrExhausted (no space for the files).
	Stop(ctx context.Context, grace time.Duration) error

	// Exec starts a command. ctx bounds the start, not the process, which keeps running when its
	// client goes away. Exec attaches the streams of cmd from the first byte, as Process.Attach
	// does. It neither retains nor changes cmd, apart from using its streams. Kinds: ErrNotFound,
	// ErrStopped (not running), ErrInvalid, ErrCommandNotFound, ErrExecFailed, ErrExhausted.
	Exec(ctx context.Context, cmd *Command) (Process, error)

	// Process finds a process that Exec started, running or ended. With Caps.Reattach, it also
	// finds processes from before a restart of the server. A running sandbox remembers at least
	// the latest 100 ended processes, but may drop the output of the oldest.
	//
	// MainProcess is the id of the process of Spec.Cmd. Its output and exit remain available
	// after the sandbox stopped or failed, until the next start. Exceptions are a crash of the
	// provider's own processes, and a sandbox with Spec.AutoRemove, which is removed after
	// AutoRemoveDelay.
	//
	// Kinds: ErrNotFound, ErrStopped, ErrNotExist (no such process).
	Process(ctx context.Context, id string) (Process, error)

	// Remove stops and deletes the sandbox. Its data volume remains for another sandbox with the
	// same id, unless RemoveVolumes is given. Named volumes of the project always remain. A
	// second Remove does nothing, unless it deletes the data volume that the first one left. A
	// failed Remove can be retried.
	Remove(ctx context.Context, opts ...RemoveOption) error
}

// Extended returns st with the expiry that Extend with ttl sets at the time now. Providers use
// it. Kinds: ErrNotFound (the sandbox has expired), ErrInvalid (the sandbox has no expiry).
func (st Status) Extended(ttl Duration, now time.Time) (Status, error) {
	switch {
	case st.Expires.IsZero():
		return st, Errorf("extend", st.ID, ErrInvalid, "the sandbox has no expiry")
	case !now.Before(st.Expires):
		return st, E("extend", st.ID, ErrNotFound, nil)
	case ttl == Never:
		st.Expires = time.Time{}
	default:
		st.Expires = now.Add(time.Duration(ttl))
	}
	return st, nil
}

// MainProcess is the id of the process that runs Spec.Cmd.
const MainProcess = "main"

// RemoveOptions holds the settings of RemoveOption values. Providers obtain it from ApplyRemoveOptions.
type RemoveOptions struct {
	Volumes bool `json:"volumes,omitempty"` // also delete the data volume
}

// A RemoveOption changes what Sandbox.Remove does.
type RemoveOption func(*RemoveOptions)

// RemoveVolumes makes Remove also delete the sandbox's data volume.
func RemoveVolumes() RemoveOption { return func(o *RemoveOptions) { o.Volumes = true } }

// ApplyRemoveOptions applies opts and returns the resulting settings.
func ApplyRemoveOptions(opts ...RemoveOption) RemoveOptions {
	var o RemoveOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// A Command describes a command to run in a sandbox, like [os/exec.Cmd].
type Command struct {
	// Args is the program and its arguments; no shell is involved. A program without a slash is
	// searched in PATH. With a TTY, Args may be empty: Exec then runs the shell that DetectShell
	// returns.
	Args []string `json:"args,omitempty"`
	// Env adds "KEY=value" pairs to those of the Spec. The last value of a key wins.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory. Empty means Spec.Workdir; a relative Dir is below it.
	Dir string `json:"dir,omitempty"`
	// User is a name, a numeric UID or UID:GID. Empty means Spec.User.
	User string `json:"user,omitempty"`
	// TTY gives the process a terminal of this size. stdout then carries all output, and stderr
	// stays empty.
	TTY *Size `json:"tty,omitempty"`
	// Durable makes the process part of snapshots: in a sandbox that starts from one, it runs on,
	// under the same id, with its descendants and its terminal. Its output begins with the snapshot
	// there. It needs Caps.DurableExec. Starting it takes longer, and its output passes more hands.
	Durable bool `json:"durable,omitempty"`
	// Timeout is the time after which the process and all its descendants are killed. Exit then
	// has TimedOut and code 124. 0 means no limit. A descendant that has left its parents, its
	// session and its environment may escape.
	Timeout Duration `json:"timeout,omitzero"`
	// OpenStdin leaves stdin open for a later Attach if Stdin is nil. Otherwise a process without
	// Stdin reads end of file.
	OpenStdin bool `json:"open_stdin,omitempty"`
	// OutputLimit is the number of bytes of each stream that the sandbox retains for later
	// attachments. 0 means DefaultOutputLimit; the maximum is MaxOutputLimit.
	OutputLimit Bytes `json:"output_limit,omitzero"`

	// Stdin is copied to the process. The end of Stdin closes the process's stdin. Wait does not
	// wait for Stdin to end.
	Stdin io.Reader `json:"-"`
	// Stdout and Stderr receive the output as the process writes it. One goroutine writes to
	// each, and only one to both if they are equal. A slow writer slows the process down. nil
	// leaves the stream unattached: the process never blocks on it, and Attach can read it later.
	Stdout, Stderr io.Writer `json:"-"`
}

// MaxOutputLimit is the largest Command.OutputLimit.
const MaxOutputLimit = 64 << 20

// Validate returns an ErrInvalid if no provider can run c.
func (c *Command) Validate() error {
	bad := func(format string, args ...any) error { return Errorf("exec", "", ErrInvalid, format, args...) }
	if len(c.Args) == 0 && c.TTY == nil {
		return bad("no command given")
	}
	if len(c.Args) > 0 && c.Args[0] == "" {
		return bad("the command is empty")
	}
	for _, a := range c.Args {
		if strings.ContainsRune(a, 0) {
			return bad("argument %q: contains a NUL byte", a)
		}
	}
	if err := validateEnv(c.Env); err != nil {
		return bad("%w", err)
	}
	if err := validateUser(c.User); err != nil {
		return bad("%w", err)
	}
	if strings.ContainsRune(c.Dir, 0) {
		return bad("dir %q: contains a NUL byte", c.Dir)
	}
	if c.Timeout < 0 {
		return bad("timeout %s: must not be negative", c.Timeout)
	}
	if c.OutputLimit < 0 || c.OutputLimit > MaxOutputLimit {
		return bad("output limit %d: must be within 0..%d", c.OutputLimit, MaxOutputLimit)
	}
	return nil
}

// CheckCaps returns an ErrUnsupported if a provider with that name and caps cannot run c.
func (c *Command) CheckCaps(provider string, caps Caps) error {
	for _, field := range []struct {
		set, has bool
		feature  string
	}{
		{c.TTY != nil, caps.TTY, "terminals"},
		{c.Durable, caps.DurableExec, "durable processes: run the command without durable, or use provider gvisor"},
	} {
		if field.set && !field.has {
			return Errorf("exec", "", ErrUnsupported, "provider %s has no %s", provider, field.feature)
		}
	}
	return nil
}

// A Process is one command in a sandbox, running or ended. Like a Sandbox it is a handle. All
// methods are safe for concurrent use.
type Process interface {
	// ID returns the id, which is unique in the sandbox.
	ID() string

	// Wait waits for the process to end. If this handle came from Exec, it also waits until the
	// streams of the Command have received the output. If a descendant holds the output open,
	// Wait returns after DrainTimeout. A non-zero exit is an Exit, not an error. If the process
	// has already ended, Wait returns at once. Several callers may wait. When ctx ends, Wait
	// returns its error and the process keeps running. Kinds: ErrStopped (the sandbox stopped
	// before the exit was known), ErrNotFound (the sandbox was removed).
	Wait(ctx context.Context) (Exit, error)

	// Signal sends sig to the process. SIGKILL also goes to all its descendants, with the
	// exception described at Command.Timeout. Kinds: ErrStopped (the process has ended).
	Signal(ctx context.Context, sig Signal) error

	// Attach copies output from the offsets in a, and copies stdin to the process. It returns nil
	// when all output has been delivered. With only Stdin, it returns nil when all input has been
	// passed on or the process has ended. When ctx ends, Attach detaches and returns ctx's error;
	// the process keeps running.
	//
	// While a stream has attachments, the slowest of them blocks the process. While it has none,
	// the sandbox drops the oldest bytes beyond Command.OutputLimit.
	Attach(ctx context.Context, a *Attachment) error
}

// DrainTimeout limits how long Wait continues to read output that a descendant holds open after
// the process itself has ended.
const DrainTimeout = 500 * time.Millisecond

// Stream is an output stream of a process.
type Stream string

// The output streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// FromNow, as an offset in an Attachment, skips all earlier output.
const FromNow int64 = -1

// An Attachment describes a connection to the streams of a process.
type Attachment struct {
	Stdin          io.Reader // nil leaves stdin alone; the end of Stdin closes the process's stdin, except for terminals
	Stdout, Stderr io.Writer // nil leaves the stream alone

	// StdoutFrom and StderrFrom are the byte offsets to read from. 0 is the first byte ever
	// written; FromNow is the next one.
	StdoutFrom, StderrFrom int64
	// NoFollow makes Attach return as soon as it has delivered the existing output.
	NoFollow bool
	// Gap, if not nil, is called when the bytes [from, to) of a stream were dropped, before the
	// next write to the stream's writer.
	Gap func(s Stream, from, to int64)
	// Name identifies the caller over several connections. It has at most MaxAttachmentName bytes
	// and may be empty. An attachment replaces an earlier one with the same name: it inherits the
	// output that the process holds for the earlier one. If the earlier Attach has not ended, it
	// returns ErrConflict.
	Name string
}

// ExecAttachment is the name of the attachment that Exec creates for Stdout and Stderr of a
// Command.
const ExecAttachment = "exec"

// MaxAttachmentName is the maximum length of Attachment.Name in bytes.
const MaxAttachmentName = 64

// ProcessStatus describes a process at one moment. It is pure data.
type ProcessStatus struct {
	ID      string       `json:"id"`              // unique within the sandbox; "main" is its own command
	Args    []string     `json:"args"`            // the program and its arguments
	Dir     string       `json:"dir,omitempty"`   // the working directory
	User    string       `json:"user,omitempty"`  // the user that it runs as
	TTY     bool         `json:"tty,omitempty"`   // it has a terminal
	PID     int          `json:"pid,omitempty"`   // inside the sandbox; 0 if unknown
	Started time.Time    `json:"started"`         // when it was started
	Exit    *Exit        `json:"exit,omitempty"`  // nil while the process runs
	Stdin   int64        `json:"stdin,omitempty"` // bytes of input passed to the process, if known
	Stdout  StreamStatus `json:"stdout"`          // the output that the sandbox retains
	Stderr  StreamStatus `json:"stderr"`          // the same of stderr
}

// StreamStatus describes the output of a stream in bytes.
type StreamStatus struct {
	Written int64 `json:"written"` // bytes that the process has written
	Oldest  int64 `json:"oldest"`  // offset of the oldest readable byte
}

// An Exit describes how a process ended.
type Exit struct {
	// Code is the exit code; 128 plus the number of the signal that killed the process; 124 if
	// TimedOut.
	Code     int    `json:"code"`
	Signal   Signal `json:"signal,omitzero"`     // 0 if no signal killed the process, or without Caps.ExitSignal
	TimedOut bool   `json:"timed_out,omitempty"` // the time limit ended it
	// Reason is one sentence that explains an unusual exit, such as "out of memory".
	Reason string `json:"reason,omitempty"`
	// Duration is the time from the start to the exit.
	Duration Duration `json:"duration,omitzero"`
}

// ExitTimedOut is the exit code of a process that exceeded its time limit.
const ExitTimedOut = 124

// Success reports whether the process exited with code 0.
func (e Exit) Success() bool { return e.Code == 0 }

// String returns a short phrase, such as "exited with code 1".
func (e Exit) String() string {
	switch {
	case e.Reason != "":
		return e.Reason
	case e.TimedOut:
		return "timed out"
	case e.Signal != 0:
		return "killed by " + e.Signal.String()
	}
	return "exited with code " + strconv.Itoa(e.Code)
}

// State returns the state of a sandbox whose main process exited with e: StateStopped for code 0,
// SIGKILL and SIGTERM, or else StateFailed.
func (e Exit) State() State {
	if e.Reason == "" && (e.Code == 0 || e.Code == 137 || e.Code == 143) {
		return StateStopped
	}
	return StateFailed
}

// A Signal is a Linux signal number on every operating system. In JSON it is a name; numbers are
// accepted, too.
type Signal int

// Common signals. Any number from 1 to 64 is valid.
const (
	SIGHUP   Signal = 1
	SIGINT   Signal = 2
	SIGQUIT  Signal = 3
	SIGKILL  Signal = 9
	SIGUSR1  Signal = 10
	SIGUSR2  Signal = 12
	SIGTERM  Signal = 15
	SIGCONT  Signal = 18
	SIGSTOP  Signal = 19
	SIGTSTP  Signal = 20
	SIGWINCH Signal = 28
)

var signalNames = map[Signal]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	17: "SIGCHLD", 18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU", 23: "SIGURG",
	24: "SIGXCPU", 25: "SIGXFSZ", 28: "SIGWINCH", 31: "SIGSYS",
}

// ParseSignal parses a signal such as "SIGTERM", "term" or "15".
func ParseSignal(s string) (Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > 64 {
			return 0, fmt.Errorf("signal %d: must be within 1..64", n)
		}
		return Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	for n, have := range signalNames {
		if have == name {
			return n, nil
		}
	}
	return 0, fmt.Errorf("signal %q: unknown", s)
}

// String returns the name of the signal.
func (s Signal) String() string {
	if name, ok := signalNames[s]; ok {
		return name
	}
	return "signal " + strconv.Itoa(int(s))
}

// MarshalText returns the name of the signal, or its number if it has no name.
func (s Signal) MarshalText() ([]byte, error) {
	if name, ok := signalNames[s]; ok {
		return []byte(name), nil
	}
	return strconv.AppendInt(nil, int64(s), 10), nil
}

// UnmarshalText accepts what ParseSignal accepts. It also accepts "" and "0", which mean no
// signal.
func (s *Signal) UnmarshalText(b []byte) error {
	if len(b) == 0 || string(b) == "0" {
		*s = 0
		return nil
	}
	v, err := ParseSignal(string(b))
	if err != nil {
		return err
	}
	*s = v
	return nil
}
