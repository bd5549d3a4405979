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

// sh is what there is of a shell: simple commands with ';' between them, from
// -c or line by line from stdin. A script that begins with ": WORD;" does what
// that word of the conformance suite's vocabulary says.
func sh(p *Proc) int {
	if len(p.Args) < 2 {
		return interactive(p)
	}
	if p.Args[1] != "-c" || len(p.Args) < 3 {
		fmt.Fprintf(p.Stderr, "sh: only -c SCRIPT, or a terminal\n")
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
	code, _ := p.script(script)
	return code
}

// onStdin is the word of atoll.ExecuteCode.
func onStdin(p *Proc) int {
	script, err := io.ReadAll(p.Stdin)
	if err != nil {
		return p.fail(err)
	}
	code, _ := p.script(string(script))
	return code
}

// script runs simple commands; exited says that one of them was exit.
func (p *Proc) script(script string) (code int, exited bool) {
	for command := range strings.SplitSeq(script, ";") {
		args := p.split(command)
		if len(args) == 0 {
			continue
		}
		if args[0] == "exit" {
			p.Args = args
			if len(args) > 1 {
				code = p.number(1)
			}
			return code, true
		}
		code = p.command(args)
	}
	return code, false
}

// command runs a program in the place of a child.
func (p *Proc) command(args []string) int {
	if args[0] == ":" {
		return 0
	}
	program, ok := p.world.programs[args[0]]
	if !ok {
		fmt.Fprintf(p.Stderr, "sh: %s: not found\n", args[0])
		return 127
	}
	p.Args = args
	return program(p)
}

// split makes words of a command: quotes group, and outside of single ones
// $NAME is replaced.
func (p *Proc) split(command string) []string {
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
			word.WriteRune('\x00') // for now, so that it is not replaced
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

// interactive is the shell of a terminal. It has jobs as far as a sleep can be
// interrupted and stopped.
func interactive(p *Proc) int {
	sigs := p.Notify(atoll.SIGINT, atoll.SIGTSTP, atoll.SIGQUIT, atoll.SIGTERM)
	in, code, exited := bufio.NewScanner(p.Stdin), 0, false
	for p.print("$ "); in.Scan(); p.print("$ ") {
		for command := range strings.SplitSeq(in.Text(), ";") {
			if args := p.split(command); len(args) > 1 && args[0] == "sleep" {
				code = p.job(args[1], sigs)
				continue
			}
			if code, exited = p.script(command); exited {
				return code
			}
		}
	}
	return code
}

// job is a sleep in the foreground.
func (p *Proc) job(seconds string, sigs <-chan atoll.Signal) int {
	n, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return 1
	}
	for len(sigs) > 0 {
		<-sigs // those before it were not for it
	}
	t := time.NewTimer(time.Duration(n * float64(time.Second)))
	defer t.Stop()
	select {
	case sig := <-sigs:
		p.print("\n")
		return 128 + int(sig)
	case <-t.C:
	case <-p.ctx.Done():
	}
	return 0
}
