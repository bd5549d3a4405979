package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// startBackground starts a command line that continues after the call has ended.
func (k *Kit) startBackground(ctx context.Context, d *sandboxState, line string, cmd *atoll.Command) (id string, err error) {
	cmd.OpenStdin = true
	err = d.startCommand(ctx, line, cmd, func(cmd *atoll.Command) error {
		p, err := d.sandbox.Exec(ctx, cmd)
		if err == nil {
			id = p.ID()
		}
		return err
	})
	return id, err
}

type processInput struct {
	ProcessID    string `json:"process_id" jsonschema:"from sandbox_exec"`
	StdoutOffset int64  `json:"stdout_offset,omitempty" jsonschema:"the first byte to return: stdout_offset of the last answer; by default the beginning and the end are returned"`
	StderrOffset int64  `json:"stderr_offset,omitempty" jsonschema:"like stdout_offset"`
	outputInput
}

type waitInput struct {
	processInput
	TimeoutSeconds int `json:"timeout_seconds,omitempty" jsonschema:"the longest wait"`
}

type processOutput struct {
	ProcessID    string `json:"process_id"`
	Running      bool   `json:"running"`
	ExitCode     *int   `json:"exit_code,omitempty" jsonschema:"set after the end"`
	TimedOut     bool   `json:"timed_out,omitempty" jsonschema:"killed after its time limit"`
	Stdout       string `json:"stdout"`
	Stderr       string `json:"stderr"`
	StdoutOffset int64  `json:"stdout_offset" jsonschema:"the offset for the next call"`
	StderrOffset int64  `json:"stderr_offset"`
	Truncated    bool   `json:"truncated,omitempty" jsonschema:"more output is available; the note has its offset"`
	note
}

type writeInput struct {
	ProcessID string `json:"process_id"`
	Input     string `json:"input,omitempty" jsonschema:"text for stdin; end a line with a newline"`
	Close     bool   `json:"close,omitempty" jsonschema:"close stdin afterwards"`
}

type writeOutput struct {
	ProcessID string `json:"process_id"`
	Written   int    `json:"written" jsonschema:"the number of bytes"`
	note
}

type killInput struct {
	ProcessID string `json:"process_id"`
	Signal    string `json:"signal,omitempty" jsonschema:"TERM asks the process to end, KILL ends it with its descendants, INT is Ctrl-C"`
}

type killOutput struct {
	ProcessID string `json:"process_id"`
	Signal    string `json:"signal"`
}

func processTools(k *Kit) []*Tool {
	wait := min(defaultTimeout, int(k.limits.Timeout/time.Second))
	return []*Tool{
		newTool(Tool{
			Name: "sandbox_process_read", Title: "Read the output of a command", ReadOnly: true, Idempotent: true,
			Description: "Read the output of a background command so far, from any offset, and whether it still runs.",
		}, readProcess).refineInput(k.limitReads),
		newTool(Tool{
			Name: "sandbox_process_wait", Title: "Wait for a command", ReadOnly: true, Idempotent: true,
			Description: "Wait until a background command has ended, or for timeout_seconds, and read its output.",
		}, waitProcess).refineInput(func(p map[string]*jsonschema.Schema) {
			k.limitReads(p)
			setTimeoutSchema(p["timeout_seconds"], wait)
		}),
		newTool(Tool{
			Name: "sandbox_process_write", Title: "Type into a command",
			Description: "Send text to the stdin of a background command.",
		}, writeProcess),
		newTool(Tool{
			Name: "sandbox_process_kill", Title: "End a command", Destructive: true,
			Description: "Send a signal to a background command.",
		}, killProcess).refineInput(func(p map[string]*jsonschema.Schema) {
			p["signal"].Enum, p["signal"].Default = []any{"TERM", "KILL", "INT", "HUP", "USR1", "USR2"}, []byte(`"TERM"`)
		}),
	}
}

func (k *Kit) limitReads(p map[string]*jsonschema.Schema) {
	k.describeOutput(p)
	p["stdout_offset"].Minimum, p["stderr_offset"].Minimum = jsonschema.Ptr(0.0), jsonschema.Ptr(0.0)
}

// withProcess calls do with a process of the caller's sandbox.
func (c *call) withProcess(ctx context.Context, id string, do func(d *sandboxState, p atoll.Process) error) (note string, err error) {
	return c.withSandbox(ctx, func(d *sandboxState) error {
		p, err := d.sandbox.Process(ctx, id)
		if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrNotFound || k == atoll.ErrInvalid {
			if c.isLost(ctx, d, atoll.E("", "", atoll.ErrNotFound, nil)) {
				return err
			}
			return c.noProcessError(ctx, d, id)
		}
		if err != nil {
			return err
		}
		return do(d, p)
	})
}

func (c *call) noProcessError(ctx context.Context, d *sandboxState, id string) error {
	all, err := atoll.Processes(ctx, d.sandbox)
	if err != nil {
		return err
	}
	var ids []string
	for _, p := range all {
		if p.ID != atoll.MainProcess {
			ids = append(ids, p.ID)
		}
	}
	ids = ids[max(0, len(ids)-maxIDs):]
	if len(ids) == 0 {
		return refusalErrorf(atoll.ErrNotExist, "there is no process %q, and no other: start one by sandbox_exec with background", id)
	}
	return refusalErrorf(atoll.ErrNotExist, "there is no process %q: the last ones are %s", id, strings.Join(ids, ", "))
}

// maxIDs is the most processes that an error names.
const maxIDs = 20

func readProcess(ctx context.Context, c *call, in processInput) (out processOutput, err error) {
	said, err := c.withProcess(ctx, in.ProcessID, func(d *sandboxState, p atoll.Process) error { return c.readOutput(ctx, d, p, in, &out) })
	out.addNote(said)
	return out, err
}

// readOutput reads p's output from the offsets of in.
func (c *call) readOutput(ctx context.Context, d *sandboxState, p atoll.Process, in processInput, out *processOutput) error {
	if in.StdoutOffset < 0 || in.StderrOffset < 0 {
		return refusalErrorf(atoll.ErrInvalid, "an offset is negative: use an offset of the last answer, or 0")
	}
	most, err := c.k.outputLimit(in.MaxOutput)
	if err != nil {
		return err
	}
	st, err := statusOf(ctx, d, p.ID()) // before the output, so that an ended process's output is complete
	if err != nil {
		return err
	}
	if in.StdoutOffset > st.Stdout.Written || in.StderrOffset > st.Stderr.Written {
		return refusalErrorf(atoll.ErrInvalid, "process %s has printed %d bytes on stdout and %d on stderr so far: use the offsets that the last answer gave, or 0",
			p.ID(), st.Stdout.Written, st.Stderr.Written)
	}
	out.ProcessID, out.Running = p.ID(), st.Exit == nil
	if st.Exit != nil {
		out.ExitCode, out.TimedOut = &st.Exit.Code, st.Exit.TimedOut
		d.closeStdin(p.ID())
	}
	least := int64(max(most, utf8.UTFMax)) // a character
	stdout, stderr := jobs.NewStream(least), jobs.NewStream(least)
	out.StdoutOffset, out.StderrOffset = in.StdoutOffset, in.StderrOffset
	err = p.Attach(ctx, &atoll.Attachment{
		Stdout: stdout, Stderr: stderr, StdoutFrom: in.StdoutOffset, StderrFrom: in.StderrOffset, NoFollow: true,
		Gap: func(s atoll.Stream, _, to int64) {
			if s == atoll.Stdout {
				out.StdoutOffset = to
			} else {
				out.StderrOffset = to
			}
			out.Note = "Some of the output was dropped before this call: read more often, or have it written to a file."
		},
	})
	if err != nil {
		return err
	}
	one, other := keptText(stdout, in.StdoutOffset), keptText(stderr, in.StderrOffset)
	limit, rest := splitLimit(most, one.Size(), other.Size())
	out.Stdout, out.StdoutOffset = out.readPart("stdout", one, out.StdoutOffset, in.StdoutOffset > 0, limit)
	out.Stderr, out.StderrOffset = out.readPart("stderr", other, out.StderrOffset, in.StderrOffset > 0, rest)
	return nil
}

// keptText returns what was read from an offset on.
func keptText(s *jobs.Stream, offset int64) jobs.Text {
	if offset > 0 {
		return s.Beginning()
	}
	return s.End()
}

func statusOf(ctx context.Context, d *sandboxState, id string) (atoll.ProcessStatus, error) {
	all, err := atoll.Processes(ctx, d.sandbox)
	if err != nil {
		return atoll.ProcessStatus{}, err
	}
	for _, p := range all {
		if p.ID == id {
			return p, nil
		}
	}
	return atoll.ProcessStatus{}, refusalErrorf(atoll.ErrNotExist, "process %q has ended, and its record was removed", id)
}

func waitProcess(ctx context.Context, c *call, in waitInput) (out processOutput, err error) {
	limit, err := c.k.timeLimit(in.TimeoutSeconds, defaultTimeout)
	if err != nil {
		return out, err
	}
	said, err := c.withProcess(ctx, in.ProcessID, func(d *sandboxState, p atoll.Process) error {
		within, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		stop := jobs.Reporting(within, time.Now(), jobs.NewStream(0), c.progressFunc())
		_, err := p.Wait(within)
		stop()
		if err != nil && (within.Err() == nil || ctx.Err() != nil) {
			return err
		}
		return c.readOutput(ctx, d, p, in.processInput, &out)
	})
	out.addNote(said)
	return out, err
}

func writeProcess(ctx context.Context, c *call, in writeInput) (out writeOutput, err error) {
	_, err = c.withProcess(ctx, in.ProcessID, func(d *sandboxState, p atoll.Process) error { // a replaced sandbox has no such process
		st, err := statusOf(ctx, d, p.ID())
		if err != nil {
			return err
		}
		if st.Exit != nil {
			return refusalErrorf(atoll.ErrConflict, "process %s has ended with code %d: it reads no more input", p.ID(), st.Exit.Code)
		}
		out = writeOutput{ProcessID: p.ID(), Written: len(in.Input)}
		taken, err := c.k.sendInput(ctx, d, p, in.Input, in.Close)
		if err == nil && !taken {
			out.Note = "The process has not read all of that yet: it gets the rest when it does. Do not send it again."
		}
		return err
	})
	return out, err
}

// feedTime is the time that a call waits for a process to read its input.
const feedTime = 2 * time.Second

// A stdinPipe leads to the stdin of a background command.
type stdinPipe struct {
	*io.PipeWriter
	turn chan struct{} // held while text is sent
}

// sendInput sends text to the stdin of p. It leaves stdin open for the next call unless
// last is set. taken is false if the process hasn't read all of it: it gets the rest
// later.
func (k *Kit) sendInput(ctx context.Context, d *sandboxState, p atoll.Process, text string, last bool) (taken bool, err error) {
	w := d.stdinOf(k, p)
	late := time.After(feedTime)
	select {
	case w.turn <- struct{}{}:
	case <-late:
		return false, refusalErrorf(atoll.ErrConflict, "process %s has not read yet what was sent to it before, and gets no more until it does", p.ID())
	case <-ctx.Done():
		return false, ctx.Err()
	}
	sent := make(chan error, 1)
	go func() { // ends with the process, or the kit
		_, err := io.WriteString(w, text)
		if err == nil {
			_, err = w.Write(nil) // waits until the text was passed on
		}
		if err == nil && last {
			err = w.Close()
		}
		<-w.turn
		sent <- err
	}()
	select {
	case err := <-sent:
		if !errors.Is(err, io.ErrClosedPipe) {
			return true, err
		}
		if st, err := statusOf(ctx, d, p.ID()); err == nil && st.Exit != nil {
			return true, nil // it exited without reading the rest
		}
		return false, refusalErrorf(atoll.ErrConflict, "the stdin of process %s is closed", p.ID())
	case <-late:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// stdinOf returns the pipe to the stdin of p. The pipe stays open, since closing it
// also closes the process's stdin.
func (d *sandboxState) stdinOf(k *Kit, p atoll.Process) *stdinPipe {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.stdins[p.ID()]; w != nil {
		return w
	}
	r, pw := io.Pipe()
	w := &stdinPipe{pw, make(chan struct{}, 1)}
	d.stdins[p.ID()] = w
	k.work.Go(func() {
		err := p.Attach(k.ctx, &atoll.Attachment{Stdin: r})
		if err == nil { // it was closed, and stays closed
			r.CloseWithError(io.ErrClosedPipe)
			return
		}
		d.mu.Lock()
		delete(d.stdins, p.ID())
		d.mu.Unlock()
		r.CloseWithError(err)
	})
	return w
}

// hasStdin reports whether a command has an open stdin pipe.
func (d *sandboxState) hasStdin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.stdins) > 0
}

func (d *sandboxState) closeStdins() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.stdins {
		_ = w.Close()
	}
	clear(d.stdins)
}

func (d *sandboxState) closeStdin(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.stdins[id]; w != nil {
		_ = w.Close()
		delete(d.stdins, id)
	}
}

func killProcess(ctx context.Context, c *call, in killInput) (out killOutput, err error) {
	sig := atoll.SIGTERM
	if in.Signal != "" {
		if sig, err = atoll.ParseSignal(in.Signal); err != nil {
			return out, refusalErrorf(atoll.ErrInvalid, "%w: use TERM, KILL, INT, HUP, USR1 or USR2", err)
		}
	}
	_, err = c.withProcess(ctx, in.ProcessID, func(d *sandboxState, p atoll.Process) error {
		err := p.Signal(ctx, sig)
		if atoll.KindOf(err) == atoll.ErrStopped && !c.isLost(ctx, d, err) {
			return refusalErrorf(atoll.ErrConflict, "process %s has ended already", p.ID())
		}
		return err
	})
	return killOutput{ProcessID: in.ProcessID, Signal: fmt.Sprint(sig)}, err
}
