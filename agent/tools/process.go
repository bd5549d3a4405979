package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// background starts a command line that goes on when the call has ended.
func (k *Kit) background(ctx context.Context, d *desk, line string, cmd *atoll.Command) (id string, err error) {
	cmd.OpenStdin, cmd.OutputLimit = true, atoll.Bytes(min(k.opts.MaxOutput, atoll.MaxOutputLimit))
	err = d.start(ctx, line, cmd, func(cmd *atoll.Command) error {
		p, err := d.sandbox.Exec(ctx, cmd)
		if err == nil {
			id = p.ID()
		}
		return err
	})
	return id, err
}

type processInput struct {
	ProcessID    string `json:"process_id" jsonschema:"what sandbox_exec gave"`
	StdoutOffset int64  `json:"stdout_offset,omitempty" jsonschema:"the first byte to return: what the last answer gave, or 0"`
	StderrOffset int64  `json:"stderr_offset,omitempty" jsonschema:"as stdout_offset"`
}

type waitInput struct {
	processInput
	TimeoutSeconds int `json:"timeout_seconds,omitempty" jsonschema:"how long to wait at most"`
}

type processOutput struct {
	ProcessID    string `json:"process_id"`
	Running      bool   `json:"running"`
	ExitCode     *int   `json:"exit_code,omitempty" jsonschema:"when it does not run any more"`
	TimedOut     bool   `json:"timed_out,omitempty" jsonschema:"it was killed since its time was over"`
	Stdout       string `json:"stdout"`
	Stderr       string `json:"stderr"`
	StdoutOffset int64  `json:"stdout_offset" jsonschema:"for the next call: what follows this"`
	StderrOffset int64  `json:"stderr_offset"`
	Truncated    bool   `json:"truncated,omitempty" jsonschema:"there is more to read already"`
	note
}

type writeInput struct {
	ProcessID string `json:"process_id"`
	Input     string `json:"input,omitempty" jsonschema:"what to send to its stdin; end a line with a newline"`
	Close     bool   `json:"close,omitempty" jsonschema:"close stdin after that"`
}

type writeOutput struct {
	ProcessID string `json:"process_id"`
	Written   int    `json:"written" jsonschema:"bytes"`
	note
}

type killInput struct {
	ProcessID string `json:"process_id"`
	Signal    string `json:"signal,omitempty" jsonschema:"TERM asks it to end, KILL ends it with all that it has started, INT is what ^C does"`
}

type killOutput struct {
	ProcessID string `json:"process_id"`
	Signal    string `json:"signal"`
}

func processTools(k *Kit) []*Tool {
	wait := min(defaultTimeout, int(k.limits.Timeout/time.Second))
	return []*Tool{
		with(Tool{
			Name: "sandbox_process_read", Title: "Read what a command has printed", ReadOnly: true, Idempotent: true,
			Description: "Read what a command in the background has printed so far, from any offset, and whether it still runs.",
		}, readProcess).limited(offsets),
		with(Tool{
			Name: "sandbox_process_wait", Title: "Wait for a command", ReadOnly: true, Idempotent: true,
			Description: "Wait until a command in the background has ended, or for timeout_seconds, and read what it has printed.",
		}, waitProcess).limited(func(p map[string]*jsonschema.Schema) {
			offsets(p)
			timeouts(p["timeout_seconds"], wait)
		}),
		with(Tool{
			Name: "sandbox_process_write", Title: "Type into a command",
			Description: "Send text to the stdin of a command in the background.",
		}, writeProcess),
		with(Tool{
			Name: "sandbox_process_kill", Title: "End a command", Destructive: true,
			Description: "Send a signal to a command in the background: TERM unless given.",
		}, killProcess),
	}
}

func offsets(p map[string]*jsonschema.Schema) {
	p["stdout_offset"].Minimum, p["stderr_offset"].Minimum = jsonschema.Ptr(0.0), jsonschema.Ptr(0.0)
}

// process finds a command of the caller's sandbox.
func (c *call) process(ctx context.Context, id string, do func(d *desk, p atoll.Process) error) (note string, err error) {
	return c.on(ctx, func(d *desk) error {
		p, err := d.sandbox.Process(ctx, id)
		if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrNotFound || k == atoll.ErrInvalid {
			if c.lost(ctx, d, atoll.E("", "", atoll.ErrNotFound, nil)) {
				return err
			}
			return c.noProcess(ctx, d, id)
		}
		if err != nil {
			return err
		}
		return do(d, p)
	})
}

func (c *call) noProcess(ctx context.Context, d *desk, id string) error {
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
	if len(ids) == 0 {
		return refuse(atoll.ErrNotExist, "there is no process %q, and no other: start one by sandbox_exec with background", id)
	}
	return refuse(atoll.ErrNotExist, "there is no process %q: there are %s", id, strings.Join(ids, ", "))
}

func readProcess(ctx context.Context, c *call, in processInput) (out processOutput, err error) {
	said, err := c.process(ctx, in.ProcessID, func(d *desk, p atoll.Process) error { return c.read(ctx, d, p, in, &out) })
	out.add(said)
	return out, err
}

// read reads what p has printed, from the offsets of in.
func (c *call) read(ctx context.Context, d *desk, p atoll.Process, in processInput, out *processOutput) error {
	if in.StdoutOffset < 0 || in.StderrOffset < 0 {
		return refuse(atoll.ErrInvalid, "an offset is negative: use what the last answer gave, or 0")
	}
	st, err := statusOf(ctx, d, p.ID()) // before the output: all of an ended one is there
	if err != nil {
		return err
	}
	if in.StdoutOffset > st.Stdout.Written || in.StderrOffset > st.Stderr.Written {
		return refuse(atoll.ErrInvalid, "process %s has printed %d bytes on stdout and %d on stderr so far: use the offsets that the last answer gave, or 0",
			p.ID(), st.Stdout.Written, st.Stderr.Written)
	}
	out.ProcessID, out.Running = p.ID(), st.Exit == nil
	if st.Exit != nil {
		out.ExitCode, out.TimedOut = &st.Exit.Code, st.Exit.TimedOut
		d.endStdin(p.ID())
	}
	stdout, stderr := jobs.NewStream(c.k.opts.MaxOutput), jobs.NewStream(c.k.opts.MaxOutput)
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
	for _, s := range []struct {
		text   jobs.Text
		to     *string
		offset *int64
	}{{stdout.End(), &out.Stdout, &out.StdoutOffset}, {stderr.End(), &out.Stderr, &out.StderrOffset}} {
		n := len(s.text.Data)
		if s.text.Cut || out.Running { // the rest of a character comes with the next call
			n = jobs.Whole(s.text.Data)
		}
		*s.to, *s.offset = jobs.Text{Data: s.text.Data[:n]}.String(), *s.offset+int64(n)
		out.Truncated = out.Truncated || s.text.Cut
	}
	return nil
}

func statusOf(ctx context.Context, d *desk, id string) (atoll.ProcessStatus, error) {
	all, err := atoll.Processes(ctx, d.sandbox)
	if err != nil {
		return atoll.ProcessStatus{}, err
	}
	for _, p := range all {
		if p.ID == id {
			return p, nil
		}
	}
	return atoll.ProcessStatus{}, refuse(atoll.ErrNotExist, "process %q has ended, and was forgotten since", id)
}

func waitProcess(ctx context.Context, c *call, in waitInput) (out processOutput, err error) {
	limit, err := c.k.timeout(in.TimeoutSeconds, defaultTimeout)
	if err != nil {
		return out, err
	}
	said, err := c.process(ctx, in.ProcessID, func(d *desk, p atoll.Process) error {
		within, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		stop := jobs.Reporting(within, time.Now(), jobs.NewStream(0), c.reports())
		_, err := p.Wait(within)
		stop()
		if err != nil && (within.Err() == nil || ctx.Err() != nil) {
			return err
		}
		return c.read(ctx, d, p, in.processInput, &out)
	})
	out.add(said)
	return out, err
}

func writeProcess(ctx context.Context, c *call, in writeInput) (out writeOutput, err error) {
	_, err = c.process(ctx, in.ProcessID, func(d *desk, p atoll.Process) error { // of which a new sandbox has none
		st, err := statusOf(ctx, d, p.ID())
		if err != nil {
			return err
		}
		if st.Exit != nil {
			return refuse(atoll.ErrConflict, "process %s has ended with code %d: nobody reads what you write", p.ID(), st.Exit.Code)
		}
		out = writeOutput{ProcessID: p.ID(), Written: len(in.Input)}
		taken, err := c.k.feed(ctx, d, p, in.Input, in.Close)
		if err == nil && !taken {
			out.Note = "The process has not read all of that yet: it gets the rest when it does. Do not send it again."
		}
		return err
	})
	return out, err
}

// feedTime is how long a process may take to read what is sent to it, until the call
// ends without that.
const feedTime = 2 * time.Second

// A stdin is the way to that of a command in the background.
type stdin struct {
	*io.PipeWriter
	turn chan struct{} // holds whose text is being sent
}

// feed sends text to the stdin of p, which stays open for the next call unless it is
// to be closed. taken is false if the process does not read: it will get the rest.
func (k *Kit) feed(ctx context.Context, d *desk, p atoll.Process, text string, last bool) (taken bool, err error) {
	w := d.stdin(k, p)
	late := time.After(feedTime)
	select {
	case w.turn <- struct{}{}:
	case <-late:
		return false, refuse(atoll.ErrConflict, "process %s has not read yet what was sent to it before, and gets no more until it does", p.ID())
	case <-ctx.Done():
		return false, ctx.Err()
	}
	sent := make(chan error, 1)
	go func() { // ends with the process, or the kit
		_, err := io.WriteString(w, text)
		if err == nil {
			_, err = w.Write(nil) // which waits until that was passed on
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
			return true, nil // it has read what it wanted
		}
		return false, refuse(atoll.ErrConflict, "the stdin of process %s is closed", p.ID())
	case <-late:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// stdin is the way to the stdin of p. It stays open: what ends closes the process's
// stdin, too.
func (d *desk) stdin(k *Kit, p atoll.Process) *stdin {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.stdins[p.ID()]; w != nil {
		return w
	}
	r, pw := io.Pipe()
	w := &stdin{pw, make(chan struct{}, 1)}
	d.stdins[p.ID()] = w
	k.work.Go(func() {
		err := p.Attach(k.ctx, &atoll.Attachment{Stdin: r})
		if err == nil { // it was closed, and stays so
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

// types reports whether anything is typed into a command.
func (d *desk) types() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.stdins) > 0
}

func (d *desk) endStdins() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.stdins {
		_ = w.Close()
	}
	clear(d.stdins)
}

func (d *desk) endStdin(id string) {
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
			return out, refuse(atoll.ErrInvalid, "%w: use TERM, KILL, INT, HUP, USR1 or USR2", err)
		}
	}
	_, err = c.process(ctx, in.ProcessID, func(d *desk, p atoll.Process) error {
		err := p.Signal(ctx, sig)
		if atoll.KindOf(err) == atoll.ErrStopped && !c.lost(ctx, d, err) {
			return refuse(atoll.ErrConflict, "process %s has ended already", p.ID())
		}
		return err
	})
	return killOutput{ProcessID: in.ProcessID, Signal: fmt.Sprint(sig)}, err
}
