//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

func TestSample(t *testing.T) {
	s := sample{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, test := range []struct {
		what      string
		got, want time.Duration
	}{
		{"median", s.medianTime(), 5}, {"median of 3", sample{1, 2, 9}.medianTime(), 2},
		{"p50", s.valueAt(0.5), 6}, {"p95", s.valueAt(0.95), 10}, {"p99", s.valueAt(0.99), 10}, {"p0", s.valueAt(0), 1},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %d, want %d", test.what, test.got, test.want)
		}
	}
}

func TestGoals(t *testing.T) {
	ms := time.Millisecond
	c := comparison{"exec", []row{{"a", sample{2 * ms}}, {"b", sample{10 * ms}}}, []goal{
		{row: "a", millis: 4}, {row: "a", than: "b", most: 0.1}, {row: "a", than: "gone", most: 1},
	}}
	var lines []string
	for _, g := range c.goals {
		lines = append(lines, c.describeGoal(g))
	}
	for i, want := range []string{
		"a: at most 4 ms: 2.00 ms, met", "a: at most 0.10 x b: 0.20 x, **not met**", "a: at most 1.00 x gone: not measured",
	} {
		if lines[i] != want {
			t.Errorf("got %q, want %q", lines[i], want)
		}
	}
	if text := (&table{comparisons: []comparison{c}}).formatMarkdown("here"); !strings.Contains(text, "| b | 10 ms | 10 ms | 5.00 x |") {
		t.Errorf("no ratio to the first row in\n%s", text)
	}
}

// Facts with a title are in one table, whatever came between them.
func TestFacts(t *testing.T) {
	tb := &table{}
	for _, f := range []fact{{title: "A", name: "1"}, {title: "B", name: "2"}, {title: "A", name: "3"}} {
		tb.addFact(f)
	}
	want := "## A\n\n| | measured | goal | |\n| --- | --: | --: | --- |\n| 1 |  |  |  |\n| 3 |  |  |  |\n\n## B\n"
	if got := tb.formatMarkdown(""); !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}
