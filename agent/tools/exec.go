package tools

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
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

// ran takes over what came of a command.
func (o *execOutput) ran(r jobs.Ran) {
	o.ExitCode, o.Stdout, o.Stderr = &r.Exit.Code, r.Stdout.String(), r.Stderr.String()
	o.DurationMS, o.TimedOut, o.Truncated = r.Took.Milliseconds(), r.Exit.TimedOut, r.Stdout.Cut || r.Stderr.Cut
	o.note.Note = said(r)
}

// said is what to do about how it ended.
func said(r jobs.Ran) string {
	switch {
	case r.Exit.TimedOut:
		return fmt.Sprintf("The time was over after %s, and the command was killed. Run what takes longer in the background.", r.Took.Round(time.Second))
	case r.Exit.Reason != "":
		return "It was ended: " + r.Exit.Reason + "."
	case r.Stdout.Cut || r.Stderr.Cut:
		return "More was printed than is returned: have it written to a file, and read parts of that."
	}
	return ""
}

// run runs a command to its end. When ctx ends first, the command is killed.
func (c *call) run(ctx context.Context, sb atoll.Sandbox, cmd *atoll.Command) (jobs.Ran, error) {
	return jobs.Run(ctx, sb, cmd, c.k.opts.MaxOutput, c.reports())
}

// reports is what tells the caller how far a long call is, nil if he does not want to know.
func (c *call) reports() func(time.Duration, string) {
	if c.report == nil {
		return nil
	}
	return func(took time.Duration, line string) { c.report(Report{Seconds: took.Seconds(), Message: line}) }
}
