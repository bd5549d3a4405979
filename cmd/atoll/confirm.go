package main

import (
	"bufio"
	"context"
	"strings"

	"github.com/spf13/pflag"
)

// A confirmation is the consent to remove something: a flag, or the answer to a question on a terminal.
type confirmation struct{ force bool }

func (f *confirmation) addFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.force, "force", "f", false, "do not ask")
	fs.BoolVarP(&f.force, "yes", "y", false, "the same as --force")
}

// askUser asks a question, and reports whether the user agrees. It returns an error if there is no terminal.
func (f *confirmation) askUser(ctx context.Context, a *app, question string) (bool, error) {
	if f.force {
		return true, nil
	}
	if !isTerminal(a.stdin) || !isTerminal(a.stderr) {
		return false, usageErrorf("nothing was removed: stdin and stderr are not a terminal to ask on; use --force to remove without a question")
	}
	if _, err := a.stderr.WriteString("atoll: " + question + " [y/N] "); err != nil {
		return false, err
	}
	answer := make(chan string, 1)
	go func() { // a read of a terminal cannot be interrupted; it ends with the program
		line, _ := bufio.NewReader(a.stdin).ReadString('\n') // no answer means no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case line := <-answer:
		if line == "y" || line == "yes" {
			return true, nil
		}
	}
	a.printMessage("nothing was removed")
	return false, nil
}
