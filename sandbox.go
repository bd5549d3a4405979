package atoll

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// A Sandbox is one isolated environment. The value is a handle: it holds no
// resources, needs no closing, and stays valid, answering ErrNotFound, after
// the sandbox was removed. All methods may be called at once from many
// goroutines, and many handles may stand for one sandbox.
type Sandbox interface {
	// ID is 32 lower-case hex digits and never changes.
	ID() string

	// Status asks the provider afresh. Kinds: ErrNotFound, once removed.
	Status(ctx context.Context) (Status, error)

	// Start brings a created, stopped or failed sandbox to running. Starting a
	// running one does nothing. Kinds: ErrNotFound, ErrUnsupported (it was
	// started before, and there is no Caps.Restart), ErrConflict (paused),
	// ErrUnavailable.
	Start(ctx context.Context) error

	// Stop asks every process to end (SIGTERM), kills what is left after grace,
	// and keeps the sandbox and, as Caps.Durable says, its files. grace 0 kills
	// at once; a negative grace means DefaultStopGrace. A Stop that cannot keep
	// the files fails, and the sandbox goes on. Stopping a stopped one does
	// nothing. Kinds: ErrNotFound, ErrExhausted (no space for the files).
	Stop(ctx context.Context, grace time.Duration) error

	// Exec starts a command. ctx bounds the start, not the process, which lives
	// on after its client has gone. The streams of cmd are attached from the
	// first byte, as by Process.Attach. Exec does not keep or change cmd, but
	// for its streams. Kinds: ErrNotFound, ErrStopped (not running), ErrInvalid,
	// ErrCommandNotFound, ErrExecFailed, ErrExhausted.
	Exec(ctx context.Context, cmd *Command) (Process, error)

	// Process finds a process that Exec started, with Caps.Reattach also from
	// before a restart of the server, running or ended. Ended ones are kept as long as the sandbox
	// runs, the latest 100 at least; what the oldest of them printed may have
	// been dropped. MainProcess is the one of Spec.Cmd, which stays, with its
	// output and its exit, when the sandbox has stopped or failed, until it is
	// started again; but not when that was a crash of the provider's own
	// processes, nor longer than AutoRemoveLinger with Spec.AutoRemove.
	// Kinds: ErrNotFound, ErrStopped, ErrNotExist (no such process).
	Process(ctx context.Context, id string) (Process, error)

	// Remove ends and deletes the sandbox. Its data volume stays for another
	// sandbox of the same id, unless RemoveVolumes is given; named volumes of
	// the project always stay. Removing twice does nothing, unless the second
	// time is to delete the data volume that the first has kept; a removal that
	// fails can be tried again.
	Remove(ctx context.Context, opts ...RemoveOption) error
}

// Extended returns st with an expiry that Extend has changed at the time now. It
// is for providers. Kinds: ErrNotFound (it is being removed), ErrInvalid (its time is not limited).
func (st Status) Extended(ttl Duration, now time.Time) (Status, error) {
	switch {
	case st.Expires.IsZero():
		return st, Errorf("extend", st.ID, ErrInvalid, "its time is not limited")
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

// RemoveOptions is what RemoveOptions options set; providers read it with
// RemoveOpts.
type RemoveOptions struct {
	Volumes bool `json:"volumes,omitempty"` // the data volume too
}

// A RemoveOption changes what Remove does.
type RemoveOption func(*RemoveOptions)

// RemoveVolumes makes Remove delete the sandbox's data volume as well.
func RemoveVolumes() RemoveOption { return func(o *RemoveOptions) { o.Volumes = true } }

// RemoveOpts collects opts.
func RemoveOpts(opts ...RemoveOption) RemoveOptions {
	var o RemoveOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// A Command says what to run in a sandbox; it has the shape of os/exec's Cmd.
type Command struct {
	// Args is the program and its arguments; no shell is involved. The program
	// is looked up in PATH when it has no slash. With a TTY, Args may be empty:
	// the shell that DetectShell finds is run.
	Args []string `json:"args,omitempty"`
	// Env holds "KEY=value" pairs added to those of the Spec; the last one wins.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory; empty means the Spec's, relative means below it.
	Dir string `json:"dir,omitempty"`
	// User is a name, a numeric UID or UID:GID; empty means the Spec's.
	User string `json:"user,omitempty"`
	// TTY gives the process a terminal of this size: stdout carries everything
	// it prints, and stderr stays empty.
	TTY *Size `json:"tty,omitempty"`
	// Timeout kills the process and all its descendants after so long; Exit
	// then has TimedOut and code 124. 0 means never. A descendant that has left
	// its parents, its session and its environment behind may not be found.
	Timeout Duration `json:"timeout,omitzero"`
	// OpenStdin keeps stdin open for a later Attach although Stdin is nil.
	// Otherwise a process without Stdin reads end of file.
	OpenStdin bool `json:"open_stdin,omitempty"`
	// OutputLimit is how many bytes of each stream are kept for those who
	// attach late; 0 means DefaultOutputLimit, the most is MaxOutputLimit.
	OutputLimit Bytes `json:"output_limit,omitzero"`

	// Stdin is copied to the process until it ends, which closes the process's
	// stdin. Wait does not wait for Stdin to end.
	Stdin io.Reader `json:"-"`
	// Stdout and Stderr receive the output as it comes; each is written by one
	// goroutine, and both by the same one when they are equal. A slow writer
	// slows the process down. A nil one leaves its stream unattached: the
	// process never blocks on it, and it can be attached later.
	Stdout, Stderr io.Writer `json:"-"`
}

// MaxOutputLimit is the largest Command.OutputLimit.
const MaxOutputLimit = 64 << 20

// Validate reports what no provider could make sense of, as ErrInvalid.
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
	if err := validEnv(c.Env); err != nil {
		return bad("%w", err)
	}
	if err := validUser(c.User); err != nil {
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

// A Process is one command running, or ended, in a sandbox. Like a Sandbox it
// is a handle. All methods may be called at once from many goroutines.
type Process interface {
	// ID is unique in the sandbox.
	ID() string

	// Wait returns when the process has ended and the streams given to Exec,
	// if this handle came from there, have been delivered. It waits for the end
	// of the output too, but no longer than a bounded drain (DrainTimeout) when
	// a grandchild holds it open. A non-zero exit is an Exit, not an error;
	// ended before, it returns at once; many may wait. When ctx ends, Wait
	// returns its error and the process lives on. Kinds: ErrStopped (the
	// sandbox stopped before an exit was seen), ErrNotFound (it was removed).
	Wait(ctx context.Context) (Exit, error)

	// Signal sends sig to the process; SIGKILL goes to all its descendants as
	// well, as far as Timeout finds them. Kinds: ErrStopped, once ended.
	Signal(ctx context.Context, sig Signal) error

	// Attach copies output from the offsets in a, stdin to the process, and
	// returns nil when the output has been delivered to its end; with Stdin
	// alone, when that has been passed on or the process has ended. When ctx ends
	// it detaches, returns ctx's error, and the process lives on. While anyone
	// is attached to a stream, its slowest reader holds the process back; with
	// nobody attached the oldest bytes beyond Command.OutputLimit are dropped.
	Attach(ctx context.Context, a *Attachment) error
}

// DrainTimeout is how long Wait goes on reading output that a descendant holds
// open after the process itself has ended.
const DrainTimeout = 500 * time.Millisecond

// Stream names one of a process's outputs.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// FromNow, as an offset of an Attachment, skips what was written before.
const FromNow int64 = -1

// An Attachment connects a caller to a process.
type Attachment struct {
	Stdin          io.Reader // nil leaves stdin alone; its end closes the process's stdin (terminals excepted)
	Stdout, Stderr io.Writer // nil leaves the stream alone

	// StdoutFrom and StderrFrom are the offsets to read from: 0 is the first
	// byte ever written, FromNow the next one.
	StdoutFrom, StderrFrom int64
	// NoFollow returns as soon as what has been written so far is delivered.
	NoFollow bool
	// Gap, when not nil, is told before anything is written to the stream's
	// writer that bytes [from, to) were dropped.
	Gap func(s Stream, from, to int64)
	// Name identifies the caller over several connections; it has at most 64 bytes and may be
	// empty. An attachment takes the place of an earlier one of the same name: what the process
	// holds back for the earlier one it holds for the new one, and the earlier one, if it has not
	// ended, returns ErrConflict.
	Name string
}

// ExecAttachment is the Name of the attachment that Exec makes of a Command's Stdout and Stderr.
const ExecAttachment = "exec"

// MaxAttachmentName is the length in bytes of the longest Attachment.Name.
const MaxAttachmentName = 64

// ProcessStatus is what is known of a process. It is pure data.
type ProcessStatus struct {
	ID      string       `json:"id"`
	Args    []string     `json:"args"`
	Dir     string       `json:"dir,omitempty"`
	User    string       `json:"user,omitempty"`
	TTY     bool         `json:"tty,omitempty"`
	PID     int          `json:"pid,omitempty"` // inside the sandbox, where known
	Started time.Time    `json:"started"`
	Exit    *Exit        `json:"exit,omitempty"`  // nil while it runs
	Stdin   int64        `json:"stdin,omitempty"` // bytes of input that were passed on to it, where known
	Stdout  StreamStatus `json:"stdout"`
	Stderr  StreamStatus `json:"stderr"`
}

// StreamStatus counts the bytes of a stream.
type StreamStatus struct {
	Written int64 `json:"written"` // by the process, so far
	Kept    int64 `json:"kept"`    // the offset of the oldest byte that can still be read
}

// An Exit says how a process ended.
type Exit struct {
	// Code is the exit code; 128 plus the signal's number for a process that
	// was killed by one; 124 when TimedOut.
	Code     int    `json:"code"`
	Signal   Signal `json:"signal,omitzero"` // 0 unless a signal killed it, and without Caps.ExitSignal
	TimedOut bool   `json:"timed_out,omitempty"`
	// Reason is one sentence when there is more to say: "out of memory".
	Reason string `json:"reason,omitempty"`
	// Duration is from start to exit.
	Duration Duration `json:"duration,omitzero"`
}

// ExitTimedOut is the exit code of a process that ran into its time limit.
const ExitTimedOut = 124

// Success reports whether the process exited with code 0.
func (e Exit) Success() bool { return e.Code == 0 }

// String prints e as a short phrase.
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

// State is what a sandbox becomes when its main process exits with e: stopped
// for 0, SIGKILL and SIGTERM, else failed.
func (e Exit) State() State {
	if e.Reason == "" && (e.Code == 0 || e.Code == 137 || e.Code == 143) {
		return StateStopped
	}
	return StateFailed
}

// A Signal is a Linux signal number, whatever the machine this runs on. In
// JSON it is its name; a number is read as well.
type Signal int

// The signals that have a use here; any number from 1 to 64 is accepted.
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

// ParseSignal reads "SIGTERM", "term" or "15".
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

// String prints the signal's name.
func (s Signal) String() string {
	if name, ok := signalNames[s]; ok {
		return name
	}
	return "signal " + strconv.Itoa(int(s))
}

// MarshalText prints the signal's name, or its number when it has none.
func (s Signal) MarshalText() ([]byte, error) {
	if name, ok := signalNames[s]; ok {
		return []byte(name), nil
	}
	return strconv.AppendInt(nil, int64(s), 10), nil
}

// UnmarshalText accepts what ParseSignal accepts, and "" or "0" for none.
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
