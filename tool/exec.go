package tool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
)

// defaultTimeout is that of a command which names none, in seconds.
const defaultTimeout = 60

type execInput struct {
	Command        string            `json:"command" jsonschema:"a command line for bash, or sh where the image has none"`
	TimeoutSeconds int               `json:"timeout_seconds,omitempty" jsonschema:"the command and all that it has started are killed after so long; in the background they are not unless this is given"`
	Workdir        string            `json:"workdir,omitempty" jsonschema:"the directory to start in, relative to the work directory or absolute"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"variables for this command"`
	Background     bool              `json:"background,omitempty" jsonschema:"return at once with a process_id, for servers and what takes long; see sandbox_process_read"`
}

type execOutput struct {
	ExitCode   *int   `json:"exit_code,omitempty" jsonschema:"124 when the time was over; not there of a command in the background"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	DurationMS int64  `json:"duration_ms"`
	Truncated  bool   `json:"truncated,omitempty" jsonschema:"more was printed than is returned: the beginning of it"`
	TimedOut   bool   `json:"timed_out,omitempty"`
	ProcessID  string `json:"process_id,omitempty" jsonschema:"of a command in the background"`
	note
}

func execTools(k *Kit) []*Tool {
	most := int(k.limits.Timeout / time.Second)
	return []*Tool{with(Tool{
		Name: "sandbox_exec", Title: "Run a command", Destructive: true,
		Description: fmt.Sprintf("Run a shell command in the sandbox: install packages, compile, run tests, anything. It is killed after timeout_seconds "+
			"(%d unless given, at most %d); for servers and long work use background. Files and packages stay for the next call; variables and the current directory do not.",
			min(defaultTimeout, most), most),
	}, execute).limited(func(p map[string]*jsonschema.Schema) { timeouts(p["timeout_seconds"], min(defaultTimeout, most)) })}
}

// timeouts completes the schema of a time limit.
func timeouts(s *jsonschema.Schema, byDefault int) {
	s.Minimum, s.Maximum = jsonschema.Ptr(1.0), jsonschema.Ptr(float64(maxTimeout))
	s.Default = fmt.Appendf(nil, "%d", byDefault)
}

// maxTimeout is the longest that can be asked for, in seconds; what is allowed may be
// less.
const maxTimeout = 86400

// timeout is the time limit of a call that asks for so many seconds.
func (k *Kit) timeout(seconds, byDefault int) (time.Duration, error) {
	if seconds < 0 || seconds > maxTimeout {
		return 0, refuse(atoll.ErrInvalid, "timeout_seconds %d: must be from 1 to %d", seconds, int(k.limits.Timeout/time.Second))
	}
	if seconds == 0 {
		seconds = byDefault
	}
	return min(time.Duration(seconds)*time.Second, k.limits.Timeout), nil
}

func execute(ctx context.Context, c *call, in execInput) (out execOutput, err error) {
	if strings.TrimSpace(in.Command) == "" {
		return out, refuse(atoll.ErrInvalid, "the command is empty: say what to run")
	}
	limit, err := c.k.timeout(in.TimeoutSeconds, defaultTimeout)
	if err != nil {
		return out, err
	}
	env, err := environ(in.Env)
	if err != nil {
		return out, err
	}
	cmd := &atoll.Command{Dir: in.Workdir, Env: env, Timeout: atoll.Duration(limit)}
	if in.Background {
		if in.TimeoutSeconds == 0 {
			cmd.Timeout = 0
		}
		said, err := c.on(ctx, func(d *desk) (err error) {
			out.ProcessID, err = c.k.background(ctx, d, in.Command, cmd)
			return err
		})
		out.add(said)
		return out, err
	}
	said, err := c.on(ctx, func(d *desk) error {
		return d.start(ctx, in.Command, cmd, func(cmd *atoll.Command) (err error) {
			ran, err := c.run(ctx, d.sandbox, cmd)
			out.ran(ran)
			return err
		})
	})
	out.add(said)
	return out, err
}

// environ is env in the form of a Command, in order.
func environ(env map[string]string) (list []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0) {
			return nil, refuse(atoll.ErrInvalid, "env %q: a variable has a name without =, and there are no NUL bytes", name)
		}
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

// A ran is what came of a command.
type ran struct {
	exit           atoll.Exit
	stdout, stderr text
	took           time.Duration
}

// ran takes over what came of a command.
func (o *execOutput) ran(r ran) {
	o.ExitCode, o.Stdout, o.Stderr = &r.exit.Code, r.stdout.string(), r.stderr.string()
	o.DurationMS, o.TimedOut, o.Truncated = r.took.Milliseconds(), r.exit.TimedOut, r.stdout.cut || r.stderr.cut
	o.note.Note = r.note()
}

// note says what to do about how it ended.
func (r ran) note() string {
	switch {
	case r.exit.TimedOut:
		return fmt.Sprintf("The time was over after %s, and the command was killed. Run what takes longer in the background.", r.took.Round(time.Second))
	case r.exit.Reason != "":
		return "It was ended: " + r.exit.Reason + "."
	case r.stdout.cut || r.stderr.cut:
		return "More was printed than is returned: have it written to a file, and read parts of that."
	}
	return ""
}

// reportEvery is how often a long call is reported on.
const reportEvery = time.Second

// run runs a command to its end. When ctx ends first, the command is killed.
func (c *call) run(ctx context.Context, sb atoll.Sandbox, cmd *atoll.Command) (ran, error) {
	stdout, stderr := &stream{limit: c.k.opts.MaxOutput}, &stream{limit: c.k.opts.MaxOutput}
	with := *cmd
	with.Stdout, with.Stderr = stdout, stderr
	began := time.Now()
	stop := c.reporting(ctx, began, stdout)
	box := &starter{Sandbox: sb}
	err := atoll.Run(ctx, box, &with)
	stop()
	if k := atoll.KindOf(err); box.started && (k == atoll.ErrStopped || k == atoll.ErrNotFound) { // whoever calls us must not run it once more
		err = refuse(atoll.ErrConflict, "the sandbox ended while the command ran, which may have done a part of its work: look at that, and run it again if need be")
	}
	r := ran{stdout: stdout.end(), stderr: stderr.end(), took: time.Since(began)}
	if failed, ok := errors.AsType[*atoll.ExitError](err); ok {
		r.exit, err = failed.Exit, nil
	}
	return r, err
}

// A starter notes whether a command was started.
type starter struct {
	atoll.Sandbox
	started bool
}

func (s *starter) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	s.started = err == nil
	return p, err
}

// reporting reports until stop is called.
func (c *call) reporting(ctx context.Context, began time.Time, out *stream) (stop func()) {
	if c.report == nil {
		return func() {}
	}
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.report(Report{Seconds: time.Since(began).Seconds(), Message: out.lastLine()})
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		close(done)
		work.Wait()
	}
}

// A stream keeps the beginning of what is written to it, and the end.
type stream struct {
	limit int64

	mu    sync.Mutex
	head  []byte
	tail  []byte // of all
	cut   bool
	ended bool
}

const tailSize = 200

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return len(b), nil // nobody waits for it any more
	}
	keep := max(0, min(int64(len(b)), s.limit-int64(len(s.head))))
	s.head, s.cut = append(s.head, b[:keep]...), s.cut || keep < int64(len(b))
	s.tail = append(s.tail, b[max(0, len(b)-tailSize):]...)
	s.tail = s.tail[max(0, len(s.tail)-tailSize):]
	return len(b), nil
}

// lastLine is the last one that is not empty.
func (s *stream) lastLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(s.tail), ""), "\r\n"), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// end is all that is kept.
func (s *stream) end() text {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return text{s.head, s.cut}
}

// A text is output, of which more may have been cut off.
type text struct {
	data []byte
	cut  bool
}

// string is what is whole of it as UTF-8: what was cut in the middle of a character
// ends before that, and what is none is replaced.
func (t text) string() string {
	data := t.data
	if t.cut {
		data = data[:whole(data)]
	}
	return strings.ToValidUTF8(string(data), "\ufffd")
}

// whole is the length of data without a character at its end that is not complete.
func whole(data []byte) int {
	for i := 1; i <= min(utf8.UTFMax, len(data)); i++ {
		if b := data[len(data)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(data[len(data)-i:]) {
				return len(data) - i
			}
			break
		}
	}
	return len(data)
}
