//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

func TestMergeResults(t *testing.T) {
	day := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	table := func(title, commit, row string) string {
		return "## " + title + "\n\n" + stampLine(commit, day) + "\n| " + row + " |\n"
	}
	const head = "# Measured\n\nHere.\n"
	old := "# Measured\n\nThere.\n" + "\n" + table("A", "aaaa", "old") + "\n" + table("B", "aaaa", "same commit") + "\n" + table("C", "bbbb", "another commit") + "\n## D\n\n| no stamp |\n"
	got := mergeResults(old, head+"\n"+table("A", "aaaa", "new"), "aaaa")
	if want := "# Measured\n\nThere.\n\n" + table("A", "aaaa", "new") + "\n" + table("B", "aaaa", "same commit"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := mergeResults(old, head+"\n"+table("A", "cccc", "new"), "cccc"); got != head+"\n"+table("A", "cccc", "new") {
		t.Errorf("at another commit, got\n%s", got)
	}
	if got, want := mergeResults(old, head+"\n"+table("E", "aaaa", "new")+"\n"+table("B", "aaaa", "new"), "aaaa"), "# Measured\n\nThere.\n\n"+table("A", "aaaa", "old")+"\n"+table("B", "aaaa", "new")+"\n"+table("E", "aaaa", "new"); got != want {
		t.Errorf("tables in between: got\n%s\nwant\n%s", got, want)
	}
	if again := mergeResults(got, head+"\n"+table("A", "aaaa", "new"), "aaaa"); again != got {
		t.Errorf("a second merge changes the results to\n%s", again)
	}
}

func TestVersus(t *testing.T) {
	ms := time.Millisecond
	row := func(title string, base, head time.Duration) comparison {
		return comparison{title: title, rows: []row{{"base", sample{base}}, {"head", sample{head}}}}
	}
	results := &table{comparisons: []comparison{row("a", 10*ms, 12*ms), row("b", 100*ms, 107*ms), row("c", 100*ms, 101*ms), row("d", 100*ms, 50*ms)}}
	text, bad := results.compareBinaries()
	if bad != 1 {
		t.Errorf("%d regressions, want 1", bad)
	}
	for _, want := range []string{"| a | 10 ms | 12 ms | 1.20 x | **regression** |", "1.07 x | slower |", "1.01 x | ok |", "0.50 x | faster |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
