//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// errDirty is the error of uncommitted changes.
var errDirty = errors.New("the working tree differs from its commit, which results name: commit first, or measure without -o")

// currentCommit returns the commit of the working tree. It returns errDirty if anything but the results
// differs from the commit.
func currentCommit(ctx context.Context) (string, error) {
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":/", ":(exclude,top)bench/RESULTS.md").Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	if len(changed) > 0 {
		return "", errDirty
	}
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	return strings.TrimSpace(string(commit)), nil
}

// A section is a table of the results, with its heading.
type section struct{ title, text string }

// stampLine returns the line of a table with its commit and its day.
func stampLine(commit string, day time.Time) string {
	return fmt.Sprintf("Measured at commit %s on %s.\n", commit, day.Format(time.DateOnly))
}

// stampPattern matches the line of stampLine.
var stampPattern = regexp.MustCompile(`(?m)^Measured at commit ([0-9a-f]+) on `)

// splitSections returns the text before the first heading, and the sections.
func splitSections(text string) (head string, sections []section) {
	parts := strings.Split("\n"+text, "\n## ")
	for _, part := range parts[1:] {
		title, _, _ := strings.Cut(part, "\n")
		sections = append(sections, section{title, "## " + strings.TrimRight(part, "\n") + "\n"})
	}
	return strings.TrimPrefix(parts[0], "\n"), sections
}

// mergeResults returns the old tables of the same commit, each in its newest version, and after them the new
// ones. It drops a table of another commit, which may no longer be true.
func mergeResults(old, text, commit string) string {
	head, added := splitSections(text)
	oldHead, before := splitSections(old)
	var sections []section
	for _, s := range before {
		if m := stampPattern.FindStringSubmatch(s.text); m == nil || m[1] != commit {
			continue
		}
		head = oldHead // measured on the same machine
		if i := slices.IndexFunc(added, func(other section) bool { return other.title == s.title }); i >= 0 {
			s = added[i]
			added = slices.Delete(added, i, i+1)
		}
		sections = append(sections, s)
	}
	sections = append(sections, added...)
	var b strings.Builder
	b.WriteString(strings.TrimRight(head, "\n") + "\n")
	for _, s := range sections {
		b.WriteString("\n" + s.text)
	}
	return b.String()
}

// writeResults merges new results into a file.
func writeResults(file, text, commit string) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(mergeResults(string(old), text, commit)), 0o644)
}
