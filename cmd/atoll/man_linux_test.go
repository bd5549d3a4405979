package main

import (
	"cmp"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

var manDir = flag.String("man", "", "write the man pages into this directory")

// mandoc finds no mistake in the man pages of all commands.
func TestManPages(t *testing.T) {
	dir := cmp.Or(*manDir, t.TempDir())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root := newRoot(&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	root.CompletionOptions.DisableDefaultCmd = true
	root.DisableAutoGenTag = true
	visitCommands(root, func(cmd *cobra.Command) { cmd.DisableAutoGenTag = true })
	date := time.Unix(0, 0).UTC() // the same in all builds
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Atoll", Manual: "Atoll", Date: &date}, dir); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 60 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err == nil {
			err = os.WriteFile(page, []byte(correctPage.Replace(string(text))), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testenv.Need(t, testenv.Program("mandoc", "mandoc"))
	if out, err := exec.Command("mandoc", append([]string{"-T", "lint", "-W", "warning"}, pages...)...).CombinedOutput(); err != nil {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
}

// correctPage replaces the parts of cobra's pages that mandoc does not accept.
var correctPage = strings.NewReplacer(`"Jan 1970"`, `"1970-01-01"`, "\n\t", "\n.br\n")

// visitCommands calls visit with each command below cmd.
func visitCommands(cmd *cobra.Command, visit func(cmd *cobra.Command)) {
	for _, sub := range cmd.Commands() {
		visit(sub)
		visitCommands(sub, visit)
	}
}
