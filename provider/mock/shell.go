package mock

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// runShell implements a minimal shell: simple commands separated by ';', from -c or line by line from
// stdin. If a script begins with ": WORD;", runShell runs that word of the conformance suite instead.
func runShell(p *Proc) int {
	if len(p.Args) < 2 {
		return runInteractive(p)
	}
	if p.Args[1] != "-c" || len(p.Args) < 3 {
		fmt.Fprintf(p.Stderr, "sh: only -c SCRIPT or a terminal is supported\n")
		return 2
	}
	script, args := p.Args[2], p.Args[min(4, len(p.Args)):]
	if rest, ok := strings.CutPrefix(script, ": "); ok {
		name, _, _ := strings.Cut(rest, ";")
		if word, ok := words[strings.TrimSpace(name)]; ok {
			p.Args = append([]string{name}, args...)
			return word(p)
		}
	}
	code, _ := p.runScript(script)
	return code
}

// runStdinScript runs a script from stdin, as atoll.ExecuteCode sends it.
func runStdinScript(p *Proc) int {
	script, err := io.ReadAll(p.Stdin)
	if err != nil {
		return p.printError(err)
	}
	code, _ := p.runScript(string(script))
	return code
}

// runScript runs simple commands and returns the code of the last one. exited reports whether the
// script called exit.
func (p *Proc) runScript(script string) (code int, exited bool) {
	for command := range strings.SplitSeq(script, ";") {
		args := p.splitWords(command)
		if len(args) == 0 {
			continue
		}
		if args[0] == "exit" {
			p.Args = args
			if len(args) > 1 {
				code = p.intArg(1)
			}
			return code, true
		}
		code = p.runCommand(args)
	}
	return code, false
}

// runCommand runs a program in this process instead of in a child.
func (p *Proc) runCommand(args []string) int {
	if args[0] == ":" {
		return 0
	}
	program, ok := p.backend.programs[args[0]]
	if !ok {
		fmt.Fprintf(p.Stderr, "sh: %s: not found\n", args[0])
		return 127
	}
	p.Args = args
	return program(p)
}

// splitWords splits a command into words. Quotes group, and $NAME is replaced except in single quotes.
func (p *Proc) splitWords(command string) []string {
	var args []string
	var word strings.Builder
	in, quote := false, rune(0)
	for _, c := range command {
		switch {
		case quote == 0 && (c == '\'' || c == '"'):
			quote, in = c, true
		case c == quote:
			quote = 0
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if in {
				args = append(args, word.String())
			}
			word.Reset()
			in = false
		case c == '$' && quote == '\'':
			word.WriteRune('\x00') // a placeholder, so that os.Expand does not replace it
		default:
			word.WriteRune(c)
			in = true
		}
	}
	if in {
		args = append(args, word.String())
	}
	for i, a := range args {
		a = os.Expand(a, func(key string) string { return process.Lookup(p.Env, key) })
		args[i] = strings.ReplaceAll(a, "\x00", "$")
	}
	return args
}

// runInteractive implements the shell of a terminal. Its only job control is that signals end a sleep.
func runInteractive(p *Proc) int {
	sigs := p.Notify(atoll.SIGINT, atoll.SIGTSTP, atoll.SIGQUIT, atoll.SIGTERM)
	in, code, exited := bufio.NewScanner(p.Stdin), 0, false
	for p.printText("$ "); in.Scan(); p.printText("$ ") {
		for command := range strings.SplitSeq(in.Text(), ";") {
			if args := p.splitWords(command); len(args) > 1 && args[0] == "sleep" {
				code = p.runForegroundSleep(args[1], sigs)
				continue
			}
			if code, exited = p.runScript(command); exited {
				return code
			}
		}
	}
	return code
}

// runForegroundSleep sleeps until the time is over, a signal arrives or the process ends.
func (p *Proc) runForegroundSleep(seconds string, sigs <-chan atoll.Signal) int {
	n, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return 1
	}
	for len(sigs) > 0 {
		<-sigs // drop signals from before the sleep
	}
	t := time.NewTimer(time.Duration(n * float64(time.Second)))
	defer t.Stop()
	select {
	case sig := <-sigs:
		p.printText("\n")
		return 128 + int(sig)
	case <-t.C:
	case <-p.ctx.Done():
	}
	return 0
}
