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

// CommandOptions configure the run of a command. The zero value runs it as the
// sandbox's user, in its work directory, within the hook's time limit.
type CommandOptions struct {
	User    string        // as in atoll.Command
	Dir     string        // as in atoll.Command
	Env     []string      // "KEY=value"
	Timeout time.Duration // after which the command and its descendants are killed; 0 means no limit of its own
}

// errorOutput is the number of bytes of a command's last output that its error
// contains.
const errorOutput = 1 << 10

// Command returns a hook that runs a command inside the sandbox and waits for it; no
// shell is involved. If the hook's context ends first, the command and its descendants
// are killed. An exit code other than 0 is an error, which contains the end of the
// command's output, so the command must print no secrets.
//
// Kinds: those of Exec and Wait; ErrExecFailed (the command failed); ErrTimeout;
// ErrInvalid (there is no sandbox).
func Command(args []string, opts CommandOptions) HookFunc {
	args = slices.Clone(args)
	opts.Env = slices.Clone(opts.Env)
	return func(ctx context.Context, data *HookData) error {
		if data.Sandbox == nil {
			return atoll.Errorf("run", "", atoll.ErrInvalid, "no sandbox to run the command in")
		}
		out := &tailBuffer{kept: atoll.Tail{Limit: errorOutput}}
		err := atoll.Run(ctx, data.Sandbox, &atoll.Command{
			Args: args, User: opts.User, Dir: opts.Dir, Env: opts.Env, Timeout: atoll.Duration(opts.Timeout),
			Stdout: out, Stderr: out,
		})
		failed, ok := errors.AsType[*atoll.ExitError](err)
		if !ok {
			return err // err has the kind already
		}
		kind := atoll.ErrExecFailed
		if failed.Exit.TimedOut {
			kind = atoll.ErrTimeout
		}
		if text := out.errorText(); text != "" {
			return atoll.Errorf("run", args[0], kind, "%s: %s", failed.Exit, text)
		}
		return atoll.Errorf("run", args[0], kind, "%s", failed.Exit)
	}
}

// A tailBuffer keeps the end of a process's output. It is locked, since the process may
// still print after its caller has stopped waiting.
type tailBuffer struct {
	mu   sync.Mutex
	kept atoll.Tail // drops bytes beyond its limit
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.Write(p)
}

// errorText returns the kept output, fit for a line of an error.
func (t *tailBuffer) errorText() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ToValidUTF8(string(bytes.TrimSpace(t.kept.Bytes())), "")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f { // drop controls that move a terminal's cursor
			return -1
		}
		return r
	}, text)
}
