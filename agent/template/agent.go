package template

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Agent is a program that gets one prompt per turn. The zero Agent runs none.
type Agent struct {
	// Command is the program and its arguments. The argument "{prompt}" is replaced by
	// the prompt, "{continue}" by the arguments in Continue if there is a conversation
	// to continue.
	Command []string `yaml:"command"`
	// Continue are the arguments with which the program continues its conversation
	// instead of beginning a new one. They are used if the conversation had a turn
	// before and ContinueIf, a path below the template's Dir, exists. An empty
	// ContinueIf always counts as existing.
	Continue   []string `yaml:"continue"`
	ContinueIf string   `yaml:"continue_if"`
	// Stdin passes the prompt on standard input instead of in the arguments.
	Stdin bool `yaml:"stdin"`
	// Format is the format of its output; "" means FormatText.
	Format Format `yaml:"format"`
	// User runs it; "" means the sandbox's default user.
	User string `yaml:"user"`
	// Env holds "KEY=value" pairs, in which {dir} stands for the template's Dir.
	Env []string `yaml:"env"`
	// Secrets are further variables. Their values are read when a turn begins, and only
	// appear in the environment of the agent.
	Secrets map[string]Secret `yaml:"secrets"`
	// TTY gives it a terminal.
	TTY bool `yaml:"tty"`
	// Timeout bounds a turn; 0 means no limit.
	Timeout atoll.Duration `yaml:"timeout"`
	// Setup are commands that root runs in the sandbox before the first turn; {dir}
	// stands for the template's Dir and {user} for User.
	Setup [][]string `yaml:"setup"`
}

// Format is the format of an agent's output.
type Format string

// The formats.
const (
	FormatClaude Format = "claude" // a JSON event per line, as printed by claude --output-format stream-json
	FormatCodex  Format = "codex"  // a JSON event per line, as printed by codex exec --json
	FormatText   Format = "text"   // the output is the agent's answer
)

// MaxPrompt is the most bytes of a prompt in an argument: Linux takes no longer ones
// (MAX_ARG_STRLEN, including its NUL).
const MaxPrompt = 128<<10 - 1

const (
	promptWord   = "{prompt}"
	continueWord = "{continue}"
)

// Args returns the command of a turn. continued tells that there is a conversation to
// continue; see Continue. A prompt that begins with '-' gets a leading space, so that
// it isn't parsed as an option. CheckPrompt tells which prompts can be an argument.
func (a *Agent) Args(prompt string, continued bool) []string {
	var args []string
	for _, arg := range a.Command {
		switch {
		case arg == continueWord && continued:
			args = append(args, a.Continue...)
		case arg == continueWord:
		case arg == promptWord && strings.HasPrefix(prompt, "-"):
			args = append(args, " "+prompt)
		case arg == promptWord:
			args = append(args, prompt)
		default:
			args = append(args, arg)
		}
	}
	return args
}

// CheckPrompt returns ErrInvalid for a prompt that the agent cannot take.
func (a *Agent) CheckPrompt(prompt string) error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("prompt", "", atoll.ErrInvalid, format, args...)
	}
	switch {
	case strings.TrimSpace(prompt) == "":
		return bad("prompt is empty")
	case a.Stdin:
		return nil
	case len(prompt) > MaxPrompt, len(prompt) == MaxPrompt && prompt[0] == '-':
		return bad("prompt has %d bytes, more than the %d of an argument: put details into a file of the sandbox, or use an agent that reads prompts from stdin (stdin: true in the template)", len(prompt), MaxPrompt)
	case strings.ContainsRune(prompt, 0):
		return bad("prompt contains a NUL byte, which no argument can hold")
	}
	return nil
}

// Turn returns the command of one turn, which contains secrets and must not be logged.
// continued tells that the conversation had a turn before, and that the Agent's
// ContinueIf exists.
//
// Kinds: ErrInvalid (the prompt; see CheckPrompt), ErrUnsupported (the template has no
// agent), ErrUnavailable (a secret is missing).
func (t *Template) Turn(prompt string, continued bool) (*atoll.Command, error) {
	a := &t.Agent
	if len(a.Command) == 0 {
		return nil, atoll.Errorf("template", t.Name, atoll.ErrUnsupported, "template has no agent: use another template, or set agent.command")
	}
	if err := a.CheckPrompt(prompt); err != nil {
		return nil, err
	}
	env, err := t.agentEnv()
	if err != nil {
		return nil, err
	}
	cmd := &atoll.Command{Args: a.Args(prompt, continued), Env: env, Dir: t.WorkDir(), User: a.User, Timeout: a.Timeout}
	if a.Stdin {
		cmd.Stdin = strings.NewReader(prompt)
	}
	if a.TTY {
		cmd.TTY = &atoll.Size{Rows: 50, Cols: 200}
	}
	return cmd, nil
}

// agentEnv returns the agent's environment, including its secrets.
func (t *Template) agentEnv() ([]string, error) {
	var env []string
	for _, kv := range t.Agent.Env {
		env = append(env, t.expandWords(kv))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Agent.Secrets)) {
		value, err := t.Agent.Secrets[name].Reveal()
		if err != nil {
			return nil, atoll.Errorf("template", t.Name, atoll.ErrUnavailable, "the agent's %s: %w", name, err)
		}
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env, nil
}

// Setup returns the commands of the Agent's Setup; the caller runs them as root.
func (t *Template) Setup() []*atoll.Command {
	var all []*atoll.Command
	for _, args := range t.Agent.Setup {
		cmd := &atoll.Command{User: "root", Dir: t.WorkDir()}
		for _, arg := range args {
			cmd.Args = append(cmd.Args, t.expandWords(arg))
		}
		all = append(all, cmd)
	}
	return all
}

// ContinuePath returns the Agent's ContinueIf as a path in the sandbox; "" if it has
// none.
func (t *Template) ContinuePath() string {
	if t.Agent.ContinueIf == "" {
		return ""
	}
	return path.Join(t.WorkDir(), t.Agent.ContinueIf)
}

// expandWords replaces {dir} and {user}.
func (t *Template) expandWords(text string) string {
	return strings.NewReplacer("{dir}", t.WorkDir(), "{user}", t.Agent.User).Replace(text)
}

// checkSettings returns the first invalid setting, with advice.
func (a *Agent) checkSettings() error {
	if err := a.checkCommand(); err != nil {
		return err
	}
	if a.ContinueIf != "" && (!fs.ValidPath(a.ContinueIf) || a.ContinueIf == ".") {
		return fmt.Errorf("continue_if %q: must be a path below the directory, without \"..\"", a.ContinueIf)
	}
	switch a.Format {
	case "", FormatClaude, FormatCodex, FormatText:
	default:
		return fmt.Errorf("format %q: use claude, codex or text", a.Format)
	}
	if a.TTY && a.Stdin {
		return errors.New("tty and stdin: a terminal has no end of input, so leave one out")
	}
	run := &atoll.Command{Args: []string{"agent"}, Env: a.Env, User: a.User, Timeout: a.Timeout}
	if err := run.Validate(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.Secrets)) {
		switch {
		case !validVariable(name):
			return fmt.Errorf("secrets: %q cannot name a variable", name)
		case a.Secrets[name].IsZero():
			return fmt.Errorf("secrets: %s is empty: write env:NAME or file:/path", name)
		case slices.ContainsFunc(a.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }):
			return fmt.Errorf("secrets: %s is in env too: keep one", name)
		}
	}
	for _, args := range a.Setup {
		if err := (&atoll.Command{Args: args}).Validate(); err != nil {
			return fmt.Errorf("setup: %w", err)
		}
		if a.User == "" && slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "{user}") }) {
			return errors.New("setup: {user} stands for user, which is not set")
		}
	}
	return nil
}

// checkCommand checks the places of the prompt and the Continue arguments.
func (a *Agent) checkCommand() error {
	count := func(word string) (n int) {
		for _, arg := range a.Command {
			if arg == word {
				n++
			}
		}
		return n
	}
	prompts, places := count(promptWord), count(continueWord)
	switch {
	case len(a.Command) == 0 && (len(a.Continue) > 0 || a.Stdin || a.TTY || a.Format != ""):
		return errors.New("command is missing")
	case len(a.Command) == 0:
		return nil
	case a.Command[0] == promptWord || a.Command[0] == continueWord:
		return errors.New("command: must begin with a program")
	case a.Stdin && prompts > 0:
		return errors.New("command: {prompt} is not allowed with stdin")
	case !a.Stdin && prompts != 1:
		return errors.New("command: use {prompt} once, as an argument of its own; or set stdin")
	case places > 1:
		return errors.New("command: {continue} occurs twice")
	case places == 0 && (len(a.Continue) > 0 || a.ContinueIf != ""):
		return errors.New("continue: put the argument {continue} into command")
	case places == 1 && len(a.Continue) == 0:
		return errors.New("command: {continue} needs continue, the arguments to put there")
	}
	for _, arg := range slices.Concat(a.Command, a.Continue) {
		if arg != promptWord && arg != continueWord && (strings.Contains(arg, promptWord) || strings.Contains(arg, continueWord)) {
			return fmt.Errorf("command: %q: {prompt} and {continue} must be arguments of their own", arg)
		}
	}
	if slices.Contains(a.Continue, promptWord) || slices.Contains(a.Continue, continueWord) {
		return errors.New("continue: {prompt} and {continue} belong into command")
	}
	return (&atoll.Command{Args: slices.Concat(a.Command, a.Continue)}).Validate()
}
