package main

import (
	"os"
	"testing"
)

// The table of commands has their names.
func TestCommandNames(t *testing.T) {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	for _, c := range commands {
		if got := c.make(a).Name(); got != c.name {
			t.Errorf("%s makes the command %s", c.name, got)
		}
	}
}

// A root has the command of its arguments, and all commands if there is none.
func TestFindRoot(t *testing.T) {
	for _, c := range []struct {
		args    []string
		partial bool
	}{
		{[]string{"run", "--", "true"}, true},
		{[]string{"--project", "ls", "run", "true"}, true},
		{[]string{"snapshot", "create", "box"}, true},
		{[]string{"run", "--help"}, true},
		{nil, false},
		{[]string{"snapshot"}, false},
		{[]string{"snapshot", "creates"}, false},
		{[]string{"--version"}, false},
		{[]string{"help", "run"}, false},
		{[]string{"__complete", "run", ""}, false},
		{[]string{"rnu"}, false},
		{[]string{"--project", "run"}, false},
		{[]string{"destroy", "box"}, false},
	} {
		root, err := (&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}).findRoot(c.args)
		if err != nil {
			t.Fatal(err)
		}
		if partial := len(root.Commands()) < len(commands); partial != c.partial {
			t.Errorf("atoll %q: partial %t, want %t", c.args, partial, c.partial)
		}
	}
}
