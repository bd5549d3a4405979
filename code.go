package atoll

import (
	"context"
	"strings"
)

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
