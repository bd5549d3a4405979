// Command testagent is an agent for tests. It prints Claude Code's stream-json, takes its flags,
// stores its sessions in the same place and runs real commands. It uses no model: the prompt is a
// script, which it follows line by line.
//
//	testagent --dangerously-skip-permissions --verbose --output-format stream-json [-c] -p PROMPT
//
// Without PROMPT, testagent reads it from stdin. The lines:
//
//	say TEXT        print TEXT as a message
//	think TEXT      print TEXT as a thought
//	partial TEXT    print TEXT in pieces of at most 8 bytes, like --include-partial-messages
//	run COMMAND     run COMMAND with sh -c, as the tool Bash; a failed command is a result too
//	env NAME        say NAME=VALUE, or "NAME is not set"
//	sleep DURATION  wait, for example 100ms
//	flood N         print N messages as fast as possible
//	raw TEXT        print TEXT as a line that is not JSON
//	warn TEXT       print TEXT on stderr
//	fail MESSAGE    end like an API error, with exit code 1
//	crash           stop in the middle of a line, with exit code 70
//
// It answers any other line with "You said: LINE". The last line of output has the type result; its
// text is the last message.
//
// The prompt and the messages are stored in $CLAUDE_CONFIG_DIR (~/.claude), in
// projects/DIR/SESSION.jsonl, where DIR is the working directory with a '-' for each character that is
// not a letter or digit. With -c, testagent continues the newest session of the directory and first
// says "I remember N prompts." If there is no session, it fails with "No conversation found to
// continue" and exit code 1, as claude did before 2.1. With TESTAGENT_CONTINUE=new it begins a new
// session instead, as claude does since 2.1.
//
// Each message uses 100 input tokens, reads 20 tokens from the cache, writes 10 to it, and has one
// output token for each 4 bytes. It costs 0.001 USD.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(runAgent(ctx, os.Args[1:]))
}

// options are the values of the flags.
type options struct {
	prompt          string
	format          string
	verbose         bool
	resume          bool
	promptFromStdin bool
}

// runAgent runs the program and returns its exit code.
func runAgent(ctx context.Context, args []string) int {
	o, err := parseFlags(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	if o.promptFromStdin {
		data, err := io.ReadAll(os.Stdin)
		if err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			return 1
		}
		o.prompt = string(data)
	}
	if strings.TrimSpace(o.prompt) == "" {
		fmt.Fprintln(os.Stderr, "Error: Input must be provided either through stdin or as a prompt argument when using --print")
		return 1
	}
	s, err := openSession(o.resume)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a := &agent{session: s, out: bufio.NewWriter(os.Stdout), quiet: o.format == "text", started: time.Now()}
	code := a.runTurn(ctx, o)
	if err := errors.Join(a.err, a.out.Flush(), s.closeFile()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return code
}

// A cliError is an error with the text of claude's.
type cliError string

func (s cliError) Error() string { return string(s) }

// parseFlags parses the flags, which may come before and after the prompt.
func parseFlags(args []string) (o options, err error) {
	set := flag.NewFlagSet("testagent", flag.ContinueOnError)
	print := set.Bool("p", false, "")
	set.BoolVar(print, "print", false, "")
	set.BoolVar(&o.resume, "c", false, "")
	set.BoolVar(&o.resume, "continue", false, "")
	set.BoolVar(&o.verbose, "verbose", false, "")
	set.StringVar(&o.format, "output-format", "text", "")
	set.Bool("dangerously-skip-permissions", false, "")
	set.Bool("include-partial-messages", false, "")
	var words []string
	for {
		if err := set.Parse(args); err != nil {
			return o, err
		}
		if set.NArg() == 0 {
			break
		}
		words, args = append(words, set.Arg(0)), set.Args()[1:]
	}
	o.prompt, o.promptFromStdin = strings.Join(words, " "), len(words) == 0
	switch {
	case !*print:
		return o, errors.New("testagent supports only --print")
	case o.format != "text" && o.format != "stream-json":
		return o, fmt.Errorf("--output-format %s: use text or stream-json", o.format)
	case o.format == "stream-json" && !o.verbose:
		return o, cliError("When using --print, --output-format=stream-json requires --verbose")
	}
	return o, nil
}

// runTurn follows the prompt and returns the exit code.
func (a *agent) runTurn(ctx context.Context, o options) int {
	a.printInit()
	if a.session.resumed {
		a.sayText(fmt.Sprintf("I remember %d prompts.", a.session.prompts))
	}
	a.recordLine(object{"type": "user", "message": object{"role": "user", "content": o.prompt}})
	for line := range strings.Lines(o.prompt) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		code, over := a.runLine(ctx, line)
		if ctx.Err() != nil {
			return 143
		}
		if over {
			return code
		}
	}
	a.printResult("")
	return 0
}

// runLine follows one line. If over is true, the turn ends with code.
func (a *agent) runLine(ctx context.Context, line string) (code int, over bool) {
	verb, rest, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
	switch verb {
	case "say":
		a.sayText(rest)
	case "think":
		a.sendMessage(object{"type": "thinking", "thinking": rest, "signature": "c2lnbmVk"}, rest)
	case "partial":
		a.sayPartial(rest)
	case "run":
		a.runBash(ctx, rest)
	case "env":
		if value, ok := os.LookupEnv(rest); ok {
			a.sayText(rest + "=" + value)
		} else {
			a.sayText(rest + " is not set")
		}
	case "sleep":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return a.failTurn(err.Error()), true
		}
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	case "flood":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return a.failTurn(err.Error()), true
		}
		a.floodTexts(ctx, n)
	case "raw":
		a.printRaw(rest + "\n")
	case "warn":
		fmt.Fprintln(os.Stderr, rest)
	case "fail":
		return a.failTurn(rest), true
	case "crash":
		a.printRaw(`{"type":"assistant","message":{"id":"msg_`)
		fmt.Fprintln(os.Stderr, "panic: the prompt says so")
		return 70, true
	default:
		a.sayText("You said: " + line)
	}
	return 0, false
}

// runBash runs a command like the tool Bash.
func (a *agent) runBash(ctx context.Context, command string) {
	a.calls++
	id := fmt.Sprintf("toolu_%s_%d", a.session.id[:8], a.session.messages+a.calls)
	a.sendMessage(object{"type": "tool_use", "id": id, "name": "Bash", "input": object{"command": command}}, command)
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.WaitDelay = time.Second // a descendant may hold the output open
	out, err := cmd.CombinedOutput()
	text, failed := strings.TrimRight(string(out), "\n"), false
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		text, failed = strings.TrimRight(fmt.Sprintf("Exit code %d\n%s", exit.ExitCode(), text), "\n"), true
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		text, failed = err.Error(), true
	}
	a.printLine(object{"type": "user", "parent_tool_use_id": nil, "message": object{"role": "user", "content": []object{
		{"type": "tool_result", "tool_use_id": id, "content": text, "is_error": failed},
	}}})
}
