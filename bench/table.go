//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A table holds the results of a run.
type table struct {
	comparisons []comparison
	facts       []fact
	missing     []string // measurements that were not possible, and why
	stamp       string   // a line with commit and day, or ""
}

// A comparison holds the times of methods that took turns.
type comparison struct {
	title string
	rows  []row
	goals []goal
}

// A row holds the times of one method.
type row struct {
	name  string
	times sample
}

// A goal limits the median of a row. With millis alone the limit is a time. With than and most, it is a
// multiple of the median of another row. With than and millis, it is that median plus a time.
type goal struct {
	row    string
	millis float64
	than   string
	most   float64
}

// A fact is a single measurement below a title.
type fact struct {
	title, name, value, goal string
	met                      bool
}

// The titles of facts.
const (
	crowdTitle    = "Many sandboxes"
	requestsTitle = "Versions of a directory: requests"
	memoryTitle   = "Versions of a directory: memory"
)

// addFact adds a fact to those with its title.
func (t *table) addFact(f fact) {
	for i := len(t.facts); i > 0; i-- {
		if t.facts[i-1].title == f.title {
			t.facts = slices.Insert(t.facts, i, f)
			return
		}
	}
	t.facts = append(t.facts, f)
}

// findRow returns the row with the name.
func (c *comparison) findRow(name string) (row, bool) {
	for _, r := range c.rows {
		if r.name == name {
			return r, true
		}
	}
	return row{}, false
}

// describeGoal describes a goal, and says whether the comparison meets it.
func (c *comparison) describeGoal(g goal) string {
	r, ok := c.findRow(g.row)
	other, there := c.findRow(g.than)
	want := fmt.Sprintf("%s: at most %.2f x %s", g.row, g.most, g.than)
	switch {
	case g.than == "":
		want = fmt.Sprintf("%s: at most %g ms", g.row, g.millis)
	case g.most == 0:
		want = fmt.Sprintf("%s: at most %g ms more than %s", g.row, g.millis, g.than)
	}
	switch {
	case !ok || g.than != "" && !there:
		return want + ": not measured"
	case g.than == "":
		met := float64(r.times.medianTime()) <= g.millis*float64(time.Millisecond)
		return fmt.Sprintf("%s: %s, %s", want, formatMillis(r.times.medianTime()), describeMet(met))
	}
	if more := r.times.medianTime() - other.times.medianTime(); g.most == 0 {
		return fmt.Sprintf("%s: %s more, %s", want, formatMillis(more), describeMet(float64(more) <= g.millis*float64(time.Millisecond)))
	}
	ratio := float64(r.times.medianTime()) / float64(other.times.medianTime())
	return fmt.Sprintf("%s: %.2f x, %s", want, ratio, describeMet(ratio <= g.most))
}

// describeMet returns the text for a goal that is met, or not.
func describeMet(met bool) string {
	if met {
		return "met"
	}
	return "**not met**"
}

// formatMarkdown returns the table as Markdown. Ratios are to the first row of each comparison.
func (t *table) formatMarkdown(machine string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Measured\n\n%s\n", machine)
	for _, c := range t.comparisons {
		fmt.Fprintf(&b, "\n## %s\n\n%s| | median | p95 | ratio |\n| --- | --: | --: | --: |\n", strings.ToUpper(c.title[:1])+c.title[1:], t.stampBlock())
		for _, r := range c.rows {
			ratio := float64(r.times.medianTime()) / float64(c.rows[0].times.medianTime())
			fmt.Fprintf(&b, "| %s | %s | %s | %.2f x |\n", r.name, formatMillis(r.times.medianTime()), formatMillis(r.times.valueAt(0.95)), ratio)
		}
		if len(c.goals) > 0 {
			b.WriteString("\n")
		}
		for _, g := range c.goals {
			fmt.Fprintf(&b, "- %s\n", c.describeGoal(g))
		}
	}
	title := ""
	for _, f := range t.facts {
		if f.title != title {
			title = f.title
			fmt.Fprintf(&b, "\n## %s\n\n%s| | measured | goal | |\n| --- | --: | --: | --- |\n", title, t.stampBlock())
		}
		word := ""
		if f.goal != "" {
			word = describeMet(f.met)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.name, f.value, f.goal, word)
	}
	for _, m := range t.missing {
		fmt.Fprintf(&b, "\nNot measured: %s\n", m)
	}
	return b.String()
}

// stampBlock returns the stamp and an empty line, or "" without a stamp.
func (t *table) stampBlock() string {
	if t.stamp == "" {
		return ""
	}
	return t.stamp + "\n"
}

// describeMachine describes the day and the machine of the measurements.
func describeMachine(ctx context.Context, gvisor string) string {
	cpu := "unknown CPU"
	data, _ := os.ReadFile("/proc/cpuinfo") // without it, the CPU is unknown
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			cpu = strings.TrimSpace(value)
			break
		}
	}
	kernel, _ := exec.CommandContext(ctx, "uname", "-r").Output()
	total, _, _ := readMemory()
	if gvisor != "" {
		gvisor = ", gVisor " + gvisor
	}
	return fmt.Sprintf("%s, %d cores of %s, %.0f GiB, Linux %s, as %s, %s%s.\n\n"+
		"All ways of a comparison took turns in one run. Ratios, to the first row, count more than times, which depend on\n"+
		"the machine. `make bench` measures anew.",
		time.Now().Format(time.DateOnly), runtime.NumCPU(), cpu, float64(total)/(1<<30), strings.TrimSpace(string(kernel)), describeUser(),
		runtime.Version(), gvisor)
}

// describeUser says whether root or an ordinary user runs bench.
func describeUser() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return "an ordinary user"
}
