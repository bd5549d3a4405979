package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Every package with tests belongs to a step of make test, and what the table names exists.
func TestTable(t *testing.T) {
	t.Chdir("../../..")
	c := newCheck(0, 1)
	if err := c.readTree(); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	tested := map[string][]*step{}
	for i := range steps {
		s := &steps[i]
		if names[s.name] {
			t.Errorf("two steps are called %s", s.name)
		}
		names[s.name] = true
		found := c.catalogueOf(s).matchPackages(s, steps)
		if s.command == nil && len(found) == 0 {
			t.Errorf("step %s has no package", s.name)
		}
		for _, pattern := range s.packages {
			if !slices.ContainsFunc(c.catalogueOf(s).names, func(name string) bool { return matchesAny([]string{pattern}, name) }) {
				t.Errorf("step %s: no package with tests matches %s", s.name, pattern)
			}
		}
		for _, name := range found {
			if !s.race && !s.all {
				tested[s.module+"/"+name] = append(tested[s.module+"/"+name], s)
			}
		}
		for _, script := range s.builds {
			if _, err := os.Stat("scripts/" + script); err != nil {
				t.Errorf("step %s: %v", s.name, err)
			}
		}
		for _, dir := range s.uses {
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("step %s: %v", s.name, err)
			}
		}
		if s.minutes == 0 {
			t.Errorf("step %s has no time", s.name)
		}
	}
	for module, pkgs := range c.packages {
		for _, name := range pkgs.names {
			checkWhole(t, strings.TrimPrefix(module, ".")+"/"+name, tested[strings.TrimPrefix(module, ".")+"/"+name])
		}
	}
}

// checkWhole fails the test unless those steps together run each test of a package once.
func checkWhole(t *testing.T, name string, by []*step) {
	t.Helper()
	var run, skip []string
	for _, s := range by {
		if s.run != "" {
			run = append(run, s.run)
		} else {
			skip = append(skip, s.skip)
		}
	}
	switch {
	case len(skip) != 1:
		t.Errorf("package %s is in %d steps without a pattern to run, want one", name, len(skip))
	case len(run) > 0 && strings.Join(run, "|") != skip[0]:
		t.Errorf("package %s: steps run %q alone, and another one skips %q", name, run, skip[0])
	}
}

func TestMatches(t *testing.T) {
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"api", "api", true},
		{"api", "api/openapi", false},
		{"api/...", "api", true},
		{"api/...", "api/openapi", true},
		{"api/...", "apiary", false},
		{"...", ".", true},
		{"...", "pool", true},
	}
	for _, test := range tests {
		if got := matchesAny([]string{"none", test.pattern}, test.name); got != test.want {
			t.Errorf("matches(%q, %q) = %v", test.pattern, test.name, got)
		}
	}
}

// fakeCheck runs steps by a clock of its own: each takes as long as its table says.
func fakeCheck(t *testing.T, budget time.Duration, slowness float64) (*check, func() []string) {
	c := newCheck(budget, 2)
	c.slowness = slowness
	c.record = &record{passes: map[string]pass{}}
	c.packages = map[string]*catalogue{".": {dir: ".", deps: map[string][]string{}}}
	var mu sync.Mutex
	var ran []string
	c.do = func(_ context.Context, s *step) outcome {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, s.name)
		c.begin = c.begin.Add(-time.Duration(s.minutes * slowness * float64(time.Minute)))
		r := newReport(io.Discard)
		r.passed++
		return outcome{s, r, 0}
	}
	return c, func() []string { return ran }
}

func TestBudget(t *testing.T) {
	table := []step{{name: "a", minutes: 5, alone: true}, {name: "b", minutes: 6, alone: true}, {name: "long", minutes: 30, alone: true}, {name: "c", minutes: 1, alone: true}, {name: "d", minutes: 1, alone: true}}
	tests := []struct {
		name     string
		minutes  time.Duration
		slowness float64
		ran, out string
	}{
		{"no limit", 0, 1, "[a b long c d]", "[]"},
		{"enough", 60, 1, "[a b long c d]", "[]"},
		{"what takes too long is left out, what is behind it is not", 20, 1, "[a b c d]", "[long]"},
		{"used up", 12, 1, "[a b]", "[long c d]"},
		{"a long step does not fit, short ones do", 10, 1, "[a c d]", "[b long]"},
		{"a slow machine", 72, 6, "[a b]", "[long c d]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, ran := fakeCheck(t, test.minutes*time.Minute, test.slowness)
			total, left := c.runSteps(t.Context(), table)
			var out []string
			for _, l := range left {
				out = append(out, l.step)
				if l.why == "" {
					t.Errorf("%s was left out without a reason", l.step)
				}
			}
			if got := fmt.Sprint(ran()); got != test.ran {
				t.Errorf("ran %s, want %s", got, test.ran)
			}
			if got := fmt.Sprint(out); got != test.out {
				t.Errorf("left out %s, want %s", got, test.out)
			}
			if total.passed != len(ran()) {
				t.Errorf("the sum has %d passes of %d", total.passed, len(ran()))
			}
		})
	}
}

// Further steps begin while CPUs are idle, but none passes the core or a step that runs alone.
func TestLanes(t *testing.T) {
	other, core, alone := step{name: "other"}, step{name: "core", first: true}, step{name: "alone", alone: true}
	tests := []struct {
		lanes lanes
		rest  []step
		want  int
	}{
		{lanes{workers: 2}, []step{other}, 0},
		{lanes{workers: 2, running: 1}, []step{core, other}, 0},
		{lanes{workers: 2, running: 2}, []step{core, other}, -1},
		{lanes{workers: 2, running: 3, spare: true}, []step{core, other}, 0},
		{lanes{workers: 2, running: 4, spare: true}, []step{other}, -1},
		{lanes{workers: 2}, []step{alone, other}, 0},
		{lanes{workers: 2, running: 1, spare: true}, []step{alone, other}, -1},
		{lanes{workers: 2, spare: true}, nil, -1},
	}
	for i, test := range tests {
		if got := test.lanes.findNext(test.rest); got != test.want {
			t.Errorf("%d: got %d, want %d", i, got, test.want)
		}
	}
}

// One further step begins for each look that finds idle CPUs.
func TestIdleCPUs(t *testing.T) {
	now := usage{time.Now(), time.Hour}
	after := func(used time.Duration) usage {
		now = usage{now.at.Add(lookEvery), now.cpu + used}
		return now
	}
	l := lanes{workers: 2, running: 2}
	for i, look := range []struct {
		used time.Duration // of the 10 seconds that two CPUs have
		want bool
	}{{0, false}, {7 * time.Second, true}, {9 * time.Second, false}, {0, true}} { // the first look has nothing to compare
		if l.lookAtCPUs(after(look.used), 2); l.spare != look.want {
			t.Errorf("look %d: %v, want %v", i, l.spare, look.want)
		}
	}
	if l.beginStep(); l.spare {
		t.Error("two steps begin after one look")
	}
	l.workers = 1
	if l.lookAtCPUs(after(0), 2); l.spare {
		t.Error("a further step begins beside one worker")
	}
	l = lanes{workers: 2}
	l.lookAtCPUs(usage{at: now.at}, 2)
	if l.lookAtCPUs(usage{at: now.at.Add(lookEvery)}, 2); l.spare {
		t.Error("a further step begins where no CPU time is counted")
	}
}

func TestEstimate(t *testing.T) {
	c, _ := fakeCheck(t, time.Hour, 3)
	s := &step{name: "s", minutes: 2}
	if got := c.estimateTime(s); got != 6*time.Minute {
		t.Errorf("by the table %v, want 6m", got)
	}
	c.record.passes["s"] = pass{Seconds: 60, Slowness: 1.5}
	if got := c.estimateTime(s); got != 2*time.Minute {
		t.Errorf("by the record %v, want 2m", got)
	}
	c.record.passes["s"] = pass{Seconds: 60, Slowness: 2.5}
	if got := c.estimateTime(s); got != time.Minute {
		t.Errorf("by the record of a machine about as slow %v, want 1m", got)
	}
}

// If steps take longer than estimated, no step begins that would then end after the budget.
func TestPace(t *testing.T) {
	c, _ := fakeCheck(t, time.Hour, 1)
	s := &step{name: "s", minutes: 50}
	if why := c.refuseStep(t.Context(), s); why != "" {
		t.Errorf("refused: %s", why)
	}
	c.notePace(10*time.Minute, 9*time.Minute)
	if got := c.measurePace(); got != 1 {
		t.Errorf("the pace of fast steps is %g, want 1", got)
	}
	c.notePace(10*time.Minute, 17*time.Minute)
	if why := c.refuseStep(t.Context(), s); c.measurePace() != 1.3 || !strings.Contains(why, "about 65 minutes") {
		t.Errorf("pace %g: %q, want that the step takes 65 minutes", c.measurePace(), why)
	}
}

// Steps that have never passed come first, then those that have not passed with their present files, then the others by age.
func TestOrder(t *testing.T) {
	c, _ := fakeCheck(t, 0, 1)
	c.sources = &sources{hashes: map[string]string{}}
	same := c.sources.hashFolders(nil)
	c.record.passes = map[string]pass{
		"new":     {Files: same, Time: time.Unix(200, 0)},
		"old":     {Files: same, Time: time.Unix(100, 0)},
		"changed": {Files: "other", Time: time.Unix(50, 0)},
		"core":    {Files: same, Time: time.Unix(300, 0)},
	}
	var got []string
	for _, s := range c.orderSteps([]step{{name: "core", first: true}, {name: "new"}, {name: "old"}, {name: "changed"}, {name: "never"}}) {
		got = append(got, s.name)
	}
	if want := "[core never changed old new]"; fmt.Sprint(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Without a record, the order depends on the commit, and the core comes first nevertheless.
func TestOrderByCommit(t *testing.T) {
	first := map[string]bool{}
	for i := range 50 {
		c, _ := fakeCheck(t, time.Minute, 1)
		c.sources, c.commit = &sources{hashes: map[string]string{}}, strconv.Itoa(i)
		got := c.orderSteps([]step{{name: "core", first: true, minutes: 9}, {name: "a", minutes: 9}, {name: "b", minutes: 9}, {name: "c", minutes: 9}})
		if got[0].name != "core" {
			t.Fatalf("%s comes first", got[0].name)
		}
		first[got[1].name] = true
	}
	if len(first) != 3 {
		t.Errorf("50 commits begin with %v, want each step", first)
	}
}

// A check begins with the steps that the last one left out, if there is time for all.
func TestOrderOfLeftOut(t *testing.T) {
	c, _ := fakeCheck(t, 0, 1)
	c.sources = &sources{hashes: map[string]string{}}
	c.record.passes = map[string]pass{
		steps[0].name: {Time: time.Unix(200, 0), Slowness: 1}, "long": {Time: time.Unix(201, 0), Seconds: 500, Slowness: 1},
		"middle": {Time: time.Unix(202, 0), Seconds: 400, Slowness: 1}, "left": {Time: time.Unix(100, 0), Seconds: 20, Slowness: 1},
	}
	var got []string
	for _, s := range c.orderSteps([]step{{name: "core", first: true}, {name: "middle"}, {name: "long"}, {name: "left"}, {name: "never", minutes: 1}}) {
		got = append(got, s.name)
	}
	if want := "[core never left long middle]"; fmt.Sprint(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The time in which scripts build parts does not count, up to half of the budget.
func TestBudgetWithoutBuilds(t *testing.T) {
	for _, test := range []struct {
		spent time.Duration
		fits  bool
	}{{0, false}, {3 * time.Minute, true}, {time.Hour, true}} {
		c, _ := fakeCheck(t, 10*time.Minute, 1)
		c.builder.spent = test.spent
		c.begin = c.begin.Add(-7 * time.Minute)
		if got := c.refuseStep(t.Context(), &step{name: "s", minutes: 5}) == ""; got != test.fits {
			t.Errorf("after %s of builds, a step of 5 minutes fits into the last 3 of 10: %v, want %v", test.spent, got, test.fits)
		}
		if c.refuseStep(t.Context(), &step{name: "s", minutes: 9}) == "" {
			t.Errorf("after %s of builds, a step of 9 minutes fits", test.spent)
		}
	}
	var b builder
	b.beginScript()
	b.beginScript()
	b.endScript()
	if b.spent != 0 || b.timeSpent() == 0 {
		t.Errorf("while a script runs, %s are spent, and %s in all", b.spent, b.timeSpent())
	}
	if b.endScript(); b.timeSpent() == 0 || b.timeSpent() != b.spent {
		t.Errorf("after it ended, %s are spent, and %s in all", b.spent, b.timeSpent())
	}
}

// The longest of the steps after the core come first if there is time for all.
func TestOrderByLength(t *testing.T) {
	all := []step{{name: "core", first: true, minutes: 1}, {name: "short", minutes: 2}, {name: "long", minutes: 9}, {name: "middle", minutes: 5}}
	for budget, want := range map[time.Duration]string{
		0:                "[core long middle short]",
		20 * time.Minute: "[core long middle short]",
		4 * time.Minute:  "[core short long middle]",
	} {
		c, _ := fakeCheck(t, budget, 1)
		c.sources = &sources{hashes: map[string]string{}}
		var got []string
		for _, s := range c.orderSteps(all) {
			got = append(got, s.name)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("with %v: got %s, want %s", budget, got, want)
		}
	}
}

func TestHash(t *testing.T) {
	t.Chdir(t.TempDir())
	hash := func(folders []string) string {
		s := &sources{files: map[string][]string{"a": {"a/x.go"}, "b": {"b/y.go"}}, hashes: map[string]string{}}
		return s.hashFolders(folders)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"a", "b"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("a/x.go", "1")
	write("b/y.go", "1")
	before := hash([]string{"a"})
	write("b/y.go", "2")
	if hash([]string{"a"}) != before {
		t.Error("a file in another folder changes the hash")
	}
	write("a/x.go", "2")
	if hash([]string{"a"}) == before {
		t.Error("a file that changes does not change the hash")
	}
	if (*sources)(nil).hashFolders([]string{"a"}) != "" {
		t.Error("without git there is a hash")
	}
}

func TestRecord(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	want := pass{Files: "f", Time: time.Unix(1, 0).UTC(), Seconds: 2, Slowness: 3}
	if err := openRecord().addPass("s", want); err != nil {
		t.Fatal(err)
	}
	if got := openRecord().passes["s"]; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Steps that end at the same time are all noted, and one that fails is not.
func TestPassesAreRecorded(t *testing.T) {
	c := newCheck(0, 4)
	c.record = &record{passes: map[string]pass{}}
	c.packages = map[string]*catalogue{".": {}}
	c.do = func(_ context.Context, s *step) outcome {
		r := newReport(io.Discard)
		if s.name == "bad" {
			r.addFailure("bad", io.EOF)
		}
		return outcome{s, r, time.Second}
	}
	table := []step{{name: "bad"}}
	for i := range 50 {
		table = append(table, step{name: fmt.Sprint(i)})
	}
	total, _ := c.runSteps(t.Context(), table)
	if _, noted := c.record.passes["bad"]; noted || len(c.record.passes) != 50 || len(total.failed) != 1 {
		t.Errorf("%d passes are noted, that of the bad one: %v; %d failures, want 50, false, 1", len(c.record.passes), noted, len(total.failed))
	}
}

func TestParseMinutes(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "60": time.Hour, "0.5": 30 * time.Second} {
		if got, err := parseMinutes(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "an hour"} {
		if _, err := parseMinutes(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestSelectSteps(t *testing.T) {
	if _, err := selectSteps([]string{"nonsense"}, false); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("no such step: %v", err)
	}
	all, err := selectSteps(nil, true)
	if err != nil || len(all) != len(steps) {
		t.Errorf("all: %d steps, %v", len(all), err)
	}
	one, err := selectSteps([]string{"mock"}, false)
	if err != nil || len(one) != 1 || one[0].name != "mock" {
		t.Errorf("mock: %v, %v", one, err)
	}
}

// An untracked leftover is found, and waited for.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	before := listThings(dir)
	name := dir + "/file"
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if left := waitForLeftovers(before, dir, 0); !slices.Contains(left, "file "+name) {
		t.Errorf("left is %v, want the file", left)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if left := waitForLeftovers(before, dir, time.Minute); slices.Contains(left, "file "+name) {
		t.Errorf("left is %v after the file went", left)
	}
}

func TestPrintLeftOut(t *testing.T) {
	var out strings.Builder
	printLeftOut(&out, []leftOut{{"a", "late"}, {"b", "long"}, {"c", "late"}})
	if got, want := out.String(), "did not run: a, c: late\ndid not run: b: long\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The packages of changed files come first, with tests or without, and then those that link them.
func TestQuickSteps(t *testing.T) {
	c := newCheck(0, 1)
	of := func(names ...string) (deps []string) {
		for _, name := range names {
			deps = append(deps, modulePath+"/"+name)
		}
		return deps
	}
	c.packages = map[string]*catalogue{".": {dir: ".", all: map[string]bool{"a": true, "bare": true, "b": true, "engine": true, "other": true},
		names: []string{"a", "b", "engine", "other"},
		deps:  map[string][]string{"a": of("a"), "b": of("a", "b"), "engine": of("a", "engine", "machine/vm/qemu"), "other": of("other")}}}
	selected, engines := c.quickSteps([]string{"a/a.go", "a/testdata/x", "bare/b.go", "README.md", "agent/genkit/g.go"})
	var names []string
	for _, s := range selected {
		names = append(names, s.name)
	}
	if got, want := strings.Join(names, ", "), "gofmt, vet, staticcheck, quick a, quick b"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(selected[2].command[3:]), "[./bare ./a]"; got != want {
		t.Errorf("staticcheck looks at %s, want %s", got, want)
	}
	if len(engines) != 1 || engines[0].step != "engine" {
		t.Errorf("engines are %v", engines)
	}
}

// A cancel interrupts the programs that a command runs, too: a shell that is interrupted waits for its own.
func TestCancelInterruptsPrograms(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := newCommand(ctx, "sh", "-c", "trap 'exit 3' INT; sh -c 'echo ready; exec sleep 1000'")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	begin := time.Now()
	err = cmd.Wait()
	if took := time.Since(begin); took > cmd.WaitDelay/2 || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("Wait: %v after %s", err, took)
	}
}
