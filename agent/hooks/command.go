package hooks

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// CommandOptions say how a command is run. The zero value runs it as the sandbox's user,
// in its work directory, for as long as the hook may take.
type CommandOptions struct {
	User    string        // as in atoll.Command
	Dir     string        // as in atoll.Command
	Env     []string      // "KEY=value"
	Timeout time.Duration // the command and its descendants are killed then; 0 means no limit of its own
}

// errorOutput is how many of the last bytes that a command printed its error has.
const errorOutput = 1 << 10

// Command returns a hook that runs a command inside the sandbox and waits for it; no
// shell is involved. When the hook's context ends first, the command and its descendants
// are killed. An exit code other than 0 is an error, which has the end of what the
// command has printed, so print no secrets.
//
// Kinds: those of Exec and Wait; ErrExecFailed (it did not succeed); ErrTimeout;
// ErrInvalid (there is no sandbox).
func Command(args []string, opts CommandOptions) HookFunc {
	args = slices.Clone(args)
	opts.Env = slices.Clone(opts.Env)
	return func(ctx context.Context, data *HookData) error {
		if data.Sandbox == nil {
			return atoll.Errorf("run", "", atoll.ErrInvalid, "there is no sandbox to run a command in")
		}
		out := &tail{kept: atoll.Tail{Limit: errorOutput}}
		err := atoll.Run(ctx, data.Sandbox, &atoll.Command{
			Args: args, User: opts.User, Dir: opts.Dir, Env: opts.Env, Timeout: atoll.Duration(opts.Timeout),
			Stdout: out, Stderr: out,
		})
		failed, ok := errors.AsType[*atoll.ExitError](err)
		if !ok {
			return err // it has the kind
		}
		kind := atoll.ErrExecFailed
		if failed.Exit.TimedOut {
			kind = atoll.ErrTimeout
		}
		if text := out.text(); text != "" {
			return atoll.Errorf("run", args[0], kind, "%s: %s", failed.Exit, text)
		}
		return atoll.Errorf("run", args[0], kind, "%s", failed.Exit)
	}
}

// A tail keeps the end of what is written. Its lock is for a process that still prints
// when nobody waits for it any longer.
type tail struct {
	mu   sync.Mutex
	kept atoll.Tail // what is beyond its limit was dropped
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.Write(p)
}

// text is what was kept, fit for a line of an error.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ToValidUTF8(string(bytes.TrimSpace(t.kept.Bytes())), "")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f { // what moves a terminal's cursor
			return -1
		}
		return r
	}, text)
}
