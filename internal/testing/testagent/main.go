// Command testagent is an agent for tests: it speaks Claude Code's stream-json, takes
// its flags, keeps its memory where that does, and runs real commands; but what it does
// is what the prompt says, line by line, and no model is asked.
//
//	testagent --dangerously-skip-permissions --verbose --output-format stream-json [-c] -p PROMPT
//
// Without PROMPT it is read from stdin. The lines:
//
//	say TEXT        says it
//	think TEXT      thinks it
//	partial TEXT    says it in pieces of at most 8 bytes, as --include-partial-messages does
//	run COMMAND     runs it with sh -c, as the tool Bash; a command that fails is a result too
//	env NAME        says NAME=VALUE, or "NAME is not set"
//	sleep DURATION  like 100ms
//	flood N         says N texts, as fast as it can
//	raw TEXT        prints it as it is, which is not JSON
//	fail MESSAGE    ends as after an error of the API, with exit code 1
//	crash           breaks off within a line, with exit code 70
//
// To any other line it says "You said: LINE". At the end comes the line of the type
// result, whose text is the last that was said.
//
// A prompt and what was said are kept in $CLAUDE_CONFIG_DIR (~/.claude), in
// projects/DIR/SESSION.jsonl, where DIR is the working directory with a '-' for whatever
// is no letter or digit. With -c the newest session of the directory goes on, and the
// agent first says "I remember N prompts." Without one it fails with "No conversation
// found to continue" and exit code 1, as claude did for long; since 2.1 that begins a new
// session instead, and so does this one with TESTAGENT_CONTINUE=new.
//
// Each message uses 100 tokens, 20 that were read from the cache, 10 that were written to
// it, and gives one for each 4 bytes; it costs 0.001 USD.
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

// options are what the flags say.
type options struct {
	prompt   string
	format   string
	verbose  bool
	goesOn   bool
	promptIn bool // on stdin
}

// runAgent is the program; it returns its exit code.
func runAgent(ctx context.Context, args []string) int {
	o, err := parseFlags(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	if o.promptIn {
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
	s, err := openSession(o.goesOn)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a := &agent{session: s, out: bufio.NewWriter(os.Stdout), quiet: o.format == "text", began: time.Now()}
	code := a.runTurn(ctx, o)
	if err := errors.Join(a.err, a.out.Flush(), s.close()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return code
}

// cliError is an error in claude's own words.
type cliError string

func (s cliError) Error() string { return string(s) }

// parseFlags reads the flags, which may come before and after the prompt.
func parseFlags(args []string) (o options, err error) {
	set := flag.NewFlagSet("testagent", flag.ContinueOnError)
	print := set.Bool("p", false, "")
	set.BoolVar(print, "print", false, "")
	set.BoolVar(&o.goesOn, "c", false, "")
	set.BoolVar(&o.goesOn, "continue", false, "")
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
	o.prompt, o.promptIn = strings.Join(words, " "), len(words) == 0
	switch {
	case !*print:
		return o, errors.New("testagent knows only --print")
	case o.format != "text" && o.format != "stream-json":
		return o, fmt.Errorf("--output-format %s: use text or stream-json", o.format)
	case o.format == "stream-json" && !o.verbose:
		return o, cliError("When using --print, --output-format=stream-json requires --verbose")
	}
	return o, nil
}

// runTurn does what the prompt says.
func (a *agent) runTurn(ctx context.Context, o options) int {
	a.init()
	if a.session.old {
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

// runLine does what one line says. It reports whether that was the last, and the exit code.
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

// runBash runs a command as the tool of that name.
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
