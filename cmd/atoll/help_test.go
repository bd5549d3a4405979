package main

import (
	"os"
	"strings"
	"testing"
)

// No command that help lists hides a topic, and pages lose their markup only.
func TestTopics(t *testing.T) {
	root := newRoot(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	for topic := range listTopics() {
		if cmd, _, err := root.Find([]string{topic}); err == nil && cmd != root && !cmd.Hidden {
			t.Errorf("the topic %s is also a command", topic)
		}
	}
	const page = "# A page\n\n<!-- note -->\nSee [b](./b.md#c) and **this**.\n\n```sh\nrun [x](y)\n\n```\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"
	const want = "A PAGE\n\nSee b and this.\n\n    run [x](y)\n\n\n| a | b |\n| 1 | 2 |\n"
	if got := renderPlain(page); got != want {
		t.Errorf("renderPlain returns %q, want %q", got, want)
	}
	if got := wrapWords(strings.Fields("aa bb cc"), 8); got != "  aa bb\n  cc\n" {
		t.Errorf("wrapWords returns %q", got)
	}
}
