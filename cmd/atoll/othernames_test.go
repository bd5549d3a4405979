package main

import (
	"os"
	"testing"

	"github.com/spf13/cobra"
)

// No command is both there and explained, and advice is one sentence.
func TestOtherCommands(t *testing.T) {
	root := newRoot(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	known := map[string]*cobra.Command{}
	for _, cmd := range root.Commands() {
		for _, name := range append([]string{cmd.Name()}, cmd.Aliases...) {
			if known[name] != nil {
				t.Errorf("two commands are called %s", name)
			}
			known[name] = cmd
		}
	}
	for name := range otherCommands {
		if cmd := known[name]; cmd == nil || !cmd.Hidden {
			t.Errorf("%s has no hidden command", name)
		}
	}
}
