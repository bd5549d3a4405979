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

// defaultTimeout is the default time limit of a command, in seconds.
const defaultTimeout = 60

type execInput struct {
	Command        string            `json:"command" jsonschema:"a command line for bash, or for sh if the image has no bash"`
	TimeoutSeconds int               `json:"timeout_seconds,omitempty" jsonschema:"time limit, after which the command and its descendants are killed; a background command has none by default"`
	Workdir        string            `json:"workdir,omitempty" jsonschema:"the directory to start in, relative to the work directory or absolute"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"variables for this command"`
	Background     bool              `json:"background,omitempty" jsonschema:"return at once with a process_id; for servers and long work; see sandbox_process_read"`
	outputInput
}

type execOutput struct {
	ExitCode   *int   `json:"exit_code,omitempty" jsonschema:"124 after the time limit, 126 or 127 if the command did not start; missing for a background command"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	DurationMS int64  `json:"duration_ms"`
	Truncated  bool   `json:"truncated,omitempty" jsonschema:"the output is cut: it has the beginning and the end"`
	TimedOut   bool   `json:"timed_out,omitempty"`
	ProcessID  string `json:"process_id,omitempty" jsonschema:"of a background command, or of one with more output to read"`
	note
}

func execTools(k *Kit) []*Tool {
	most := int(k.limits.Timeout / time.Second)
	return []*Tool{newTool(Tool{
		Name: "sandbox_exec", Title: "Run a command", Destructive: true,
		Description: fmt.Sprintf("Run a shell command in the sandbox, such as a build or tests. %s It is killed after timeout_seconds "+
			"(default %d, at most %d); use background for servers and long work. Files remain for the next call; variables and the current directory do not.",
			k.shortNetwork(), min(defaultTimeout, most), most),
	}, execCommand).refineInput(func(p map[string]*jsonschema.Schema) {
		setTimeoutSchema(p["timeout_seconds"], min(defaultTimeout, most))
		k.describeOutput(p)
	})}
}

// setTimeoutSchema completes the schema of a time limit.
func setTimeoutSchema(s *jsonschema.Schema, byDefault int) {
	s.Minimum, s.Maximum = jsonschema.Ptr(1.0), jsonschema.Ptr(float64(maxTimeout))
	s.Default = fmt.Appendf(nil, "%d", byDefault)
}

// maxTimeout is the upper bound of time limits in the schema, in seconds; the agent's
// limit may be lower.
const maxTimeout = 86400

// timeLimit returns the time limit of a call that asks for this many seconds.
func (k *Kit) timeLimit(seconds, byDefault int) (time.Duration, error) {
	if seconds < 0 || seconds > maxTimeout {
		return 0, refusalErrorf(atoll.ErrInvalid, "timeout_seconds %d: must be from 1 to %d", seconds, int(k.limits.Timeout/time.Second))
	}
	if seconds == 0 {
		seconds = byDefault
	}
	return min(time.Duration(seconds)*time.Second, k.limits.Timeout), nil
}

func execCommand(ctx context.Context, c *call, in execInput) (out execOutput, err error) {
	if strings.TrimSpace(in.Command) == "" {
		return out, refusalErrorf(atoll.ErrInvalid, "command is empty: set a command line")
	}
	limit, err := c.k.timeLimit(in.TimeoutSeconds, defaultTimeout)
	if err != nil {
		return out, err
	}
	most, err := c.k.outputLimit(in.MaxOutput)
	if err != nil {
		return out, err
	}
	env, err := makeEnv(in.Env)
	if err != nil {
		return out, err
	}
	cmd := &atoll.Command{Dir: in.Workdir, Env: c.k.plainEnv(env), Timeout: atoll.Duration(limit)}
	if in.Background {
		if in.TimeoutSeconds == 0 {
			cmd.Timeout = 0
		}
		said, err := c.withSandbox(ctx, func(d *sandboxState) (err error) {
			out.ProcessID, err = c.k.startBackground(ctx, d, in.Command, cmd)
			return err
		})
		out.addNote(said)
		return out, err
	}
	said, err := c.withSandbox(ctx, func(d *sandboxState) error {
		err := d.startCommand(ctx, in.Command, cmd, func(cmd *atoll.Command) (err error) {
			stdout, stderr := jobs.NewStream(int64(most)), jobs.NewStream(int64(most))
			files := d.newSpools(ctx)
			stdout.Overflow(files.stdout)
			stderr.Overflow(files.stderr)
			ran, err := jobs.RunTo(ctx, d.sandbox, cmd, stdout, stderr, c.progressFunc())
			if err == nil {
				files.keepOutput(&ran, most)
				out.setResult(&ran, most)
				c.addRest(ctx, d, &ran, &out)
			}
			files.closeFiles()
			return err
		})
		if code := atoll.StartFailure(err); code != 0 { // as a shell reports it
			out.ExitCode, out.Stderr, err = &code, errorCause(err).Error(), nil
		}
		return err
	})
	out.addNote(said)
	return out, err
}

// plainEnv returns env for a command without a terminal: programs such as editors then print no escape
// sequences, unless TERM is set.
func (k *Kit) plainEnv(env []string) []string {
	for _, kv := range k.opts.Sandbox.Env {
		if strings.HasPrefix(kv, "TERM=") {
			return env
		}
	}
	return append([]string{"TERM=dumb"}, env...)
}

// makeEnv returns env as the sorted variables of a Command.
func makeEnv(env map[string]string) (list []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0) {
			return nil, refusalErrorf(atoll.ErrInvalid, "env %q: names must not be empty or contain =, and no NUL bytes are allowed", name)
		}
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

// setResult copies the result of a command, and shortens its output.
func (o *execOutput) setResult(r *jobs.Ran, most int) {
	o.ExitCode, o.DurationMS, o.TimedOut = &r.Exit.Code, r.Took.Milliseconds(), r.Exit.TimedOut
	o.note.Note = strings.TrimSpace(resultNote(r) + " " + refusalNote(r))
	o.Stdout, o.Stderr, o.Truncated = fitOutput(r, most)
}

// resultNote returns advice about the way a command ended.
func resultNote(r *jobs.Ran) string {
	switch {
	case r.Exit.TimedOut:
		return fmt.Sprintf("The time limit of %s was reached, and the command was killed. Run longer commands in the background.", r.Took.Round(time.Second))
	case r.Exit.Reason != "":
		return "It was ended: " + r.Exit.Reason + "."
	}
	return ""
}

// progressFunc returns a function that reports progress to the caller, nil if nobody
// listens.
func (c *call) progressFunc() func(time.Duration, string) {
	if c.report == nil {
		return nil
	}
	return func(took time.Duration, line string) { c.report(Report{Seconds: took.Seconds(), Message: line}) }
}
