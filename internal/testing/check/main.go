// Command check is `make test`: it installs what the tests need, runs the steps of the table in
// steps.go in the order of their value, reports what failed, and fails if a test failed or
// anything is left behind: a process, a mount, a control group, a network namespace, a file.
//
// With arguments it runs the steps by those names only. CHECK_MINUTES limits its time: when that
// is used up, it starts no further step and names the steps that did not run.
//
// "check quick" is `make check`, the quick tests of what changed, and "check stress" is
// `make stress`, one test many times under load. "check prose" looks for habits of writing
// that are to go. "check systems" type-checks everything for other systems.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := runCheck(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

// errFailed says that the report has the reasons.
var errFailed = errors.New("FAILED")

func runCheck(args []string) error {
	// A caller such as nohup may have us ignore signals, and programs inherit that. The tests
	// send these signals to programs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch {
	case len(args) > 0 && args[0] == "quick":
		return runQuick(ctx, args[1:])
	case len(args) > 0 && args[0] == "stress":
		return runStress(ctx, args[1:])
	case len(args) > 0 && args[0] == "prose":
		return runProse(ctx, args[1:])
	case len(args) > 0 && args[0] == "systems":
		return runSystems(ctx, args[1:])
	}
	flags := flag.NewFlagSet("check", flag.ExitOnError)
	list := flags.Bool("list", false, "list the steps and run nothing")
	all := flags.Bool("all", false, "run the long steps and the long parts of the others, too")
	times := flags.Bool("times", false, "run one package at a time, and print the CPU and wall seconds of each package and group")
	promises := flags.String("promises", "", "write a table of the suite's promises, and where each was kept, to this file")
	workers := flags.Int("j", 2, "the number of steps to run beside one another; more while CPUs are idle")
	if err := flags.Parse(args); err != nil {
		return err
	}
	selected, err := selectSteps(flags.Args(), *all)
	if err != nil {
		return err
	}
	if *list {
		printSteps(selected)
		return nil
	}
	budget, err := parseMinutes(os.Getenv("CHECK_MINUTES"))
	if err != nil {
		return err
	}
	c := newCheck(budget, *workers)
	if c.times = *times; c.times {
		c.workers = 1
	}
	if *all {
		os.Setenv("CHECK_ALL", "1")
	}
	c.promises, c.whole = *promises, flags.NArg() == 0
	return c.runAll(ctx, selected)
}

// selectSteps returns the steps by those names, or those of make test or make test-all.
func selectSteps(names []string, all bool) ([]step, error) {
	var selected []step
	for _, s := range steps {
		if slices.Contains(names, s.name) || len(names) == 0 && (all || !s.all) {
			selected = append(selected, s)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return nil, fmt.Errorf("there is no step %q; list them with -list", name)
		}
	}
	return selected, nil
}

func printSteps(selected []step) {
	for _, s := range selected {
		fmt.Printf("%-14s %5.1f min  %s\n", s.name, s.minutes, s.about)
	}
}

// parseMinutes reads CHECK_MINUTES; 0 is no limit.
func parseMinutes(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	minutes, err := strconv.ParseFloat(text, 64)
	if err != nil || minutes <= 0 {
		return 0, fmt.Errorf("CHECK_MINUTES=%s: give a number of minutes, such as 60", text)
	}
	return time.Duration(minutes * float64(time.Minute)), nil
}

// A check is one run of make test.
type check struct {
	begin   time.Time
	budget  time.Duration // 0: no limit
	workers int
	times   bool

	commit   string // that is checked out, if it is known
	whole    bool   // all steps are asked for, not some by name
	promises string // the file to write the table of promises to, if any

	slowness         float64
	estimated, taken time.Duration // of the steps of this run that have passed

	builder  *builder
	record   *record
	packages map[string]*catalogue // by the directory of their module
	sources  *sources

	do func(ctx context.Context, s *step) outcome // runs a step
}

// An outcome is the report of a step that ended, and how long the step took.
type outcome struct {
	step   *step
	report *report
	took   time.Duration
}

func newCheck(budget time.Duration, workers int) *check {
	c := &check{begin: time.Now(), budget: budget, workers: workers, slowness: 1, builder: &builder{}, record: openRecord()}
	c.do = c.runStep
	return c
}

// runAll runs the steps and prints the report.
func (c *check) runAll(ctx context.Context, selected []step) error {
	scratch, err := openScratch()
	if err != nil {
		return err
	}
	defer scratch.removeFolder()
	start, slowness, err := measureSlowness(scratch.dir)
	if err != nil {
		return err
	}
	c.slowness = slowness
	fmt.Printf("an empty program takes %.2f ms here: slowness %.2f; %s\n", start.Seconds()*1000, slowness, scratch.describePlace())
	if err := setSlowness(slowness); err != nil {
		return err
	}
	if err := installPackages(ctx); err != nil {
		fmt.Println(err)
	}
	if err := c.readTree(); err != nil {
		return err
	}
	before := listThings(scratch.tmp)
	total, leftOut := c.runSteps(ctx, c.orderSteps(selected))
	patience := time.Minute
	if ctx.Err() != nil {
		patience = 5 * time.Second // somebody interrupted the check, and waits
	}
	left := waitForLeftovers(before, scratch.tmp, time.Duration(c.slowness*float64(patience)))
	for _, thing := range left {
		fmt.Println("left behind:", thing)
	}
	if c.times {
		total.printTimes()
	}
	if err := c.writePromises(total); err != nil {
		return err
	}
	ok := total.printSummary(c.whole && len(leftOut) == 0) && len(left) == 0 && ctx.Err() == nil
	fmt.Printf("%.1f minutes; an empty program took %.2f ms when the check began\n", time.Since(c.begin).Minutes(), start.Seconds()*1000)
	printLeftOut(os.Stdout, leftOut)
	if !ok {
		return errFailed
	}
	return nil
}

// writePromises writes the table of promises to the file that -promises names.
func (c *check) writePromises(total *report) error {
	if c.promises == "" {
		return nil
	}
	f, err := os.Create(c.promises)
	if err != nil {
		return err
	}
	return errors.Join(total.writePromises(f), f.Close())
}

// readTree lists the packages and files.
func (c *check) readTree() error {
	c.packages, c.sources, c.commit = map[string]*catalogue{}, listSources(), readCommit()
	for _, dir := range []string{".", "agent/genkit"} {
		found, err := listPackages(dir)
		if err != nil {
			return err
		}
		c.packages[dir] = found
	}
	return nil
}

// catalogueOf returns the packages of a step's module.
func (c *check) catalogueOf(s *step) *catalogue {
	if s.module == "" {
		return c.packages["."]
	}
	return c.packages[s.module]
}

// hashStep returns a hash of the files that decide what a step finds, as they were when the check
// read them first. Only the goroutine of runSteps may call it.
func (c *check) hashStep(s *step) string {
	pkgs := c.catalogueOf(s)
	return c.sources.hashFolders(pkgs.sourceFolders(pkgs.matchPackages(s, steps), s.uses))
}

// orderSteps puts the steps of the core first, then those that have never passed here, then those whose
// files changed since, then the others, and of each kind those first that passed longest ago. If there is
// time for all, those come after the core that the last check left out, then the longest, so that all end
// together.
func (c *check) orderSteps(selected []step) []step {
	rank := func(s *step) (int, int64) {
		last := c.record.passes[s.name]
		switch {
		case s.first:
			return 0, 0
		case last.Files == "":
			return 1, c.placeOf(s)
		case last.Files != c.hashStep(s):
			return 2, last.Time.Unix()
		default:
			return 3, last.Time.Unix()
		}
	}
	sorted := slices.Clone(selected)
	slices.SortStableFunc(sorted, func(a, b step) int {
		kindA, timeA := rank(&a)
		kindB, timeB := rank(&b)
		return cmp.Or(cmp.Compare(kindA, kindB), cmp.Compare(timeA, timeB))
	})
	if c.hasTimeFor(sorted) {
		rest := sorted
		for len(rest) > 0 && rest[0].first {
			rest = rest[1:]
		}
		slices.SortStableFunc(rest, func(a, b step) int {
			if left := c.wasLeftOut(&a); left != c.wasLeftOut(&b) {
				if left {
					return -1
				}
				return 1
			}
			return cmp.Compare(c.estimateTime(&b), c.estimateTime(&a))
		})
	}
	return sorted
}

// placeOf returns a number by which to order steps that have never passed here. It depends on the commit, so that
// machines without a record, such as those of CI, do not leave out the same steps each time.
func (c *check) placeOf(s *step) int64 {
	if c.commit == "" {
		return 0
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, c.commit+s.name)
	return int64(h.Sum32())
}

// wasLeftOut reports whether a step did not pass in the last whole check here, which begins with the first step.
func (c *check) wasLeftOut(s *step) bool {
	return c.record.passes[s.name].Time.Before(c.record.passes[steps[0].name].Time)
}

// hasTimeFor reports whether all steps can be expected to end within the budget, if as many as possible
// run beside one another.
func (c *check) hasTimeFor(all []step) bool {
	var sum time.Duration
	for i := range all {
		sum += c.estimateTime(&all[i])
	}
	return c.budget == 0 || sum/time.Duration(2*c.workers) < c.budget
}

// A leftOut is a step that did not run, and why.
type leftOut struct{ step, why string }

// printLeftOut names the steps that did not run, those with the same reason in one line.
func printLeftOut(w io.Writer, all []leftOut) {
	names := map[string][]string{}
	var reasons []string
	for _, l := range all {
		if names[l.why] == nil {
			reasons = append(reasons, l.why)
		}
		names[l.why] = append(names[l.why], l.step)
	}
	for _, why := range reasons {
		fmt.Fprintf(w, "did not run: %s: %s\n", strings.Join(names[why], ", "), why)
	}
}

// runSteps runs the steps in their order, some beside one another, until the time is used up.
func (c *check) runSteps(ctx context.Context, ordered []step) (total *report, left []leftOut) {
	total = newReport(os.Stdout)
	ended := make(chan outcome)
	l := lanes{workers: c.workers}
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	for rest := slices.Clone(ordered); len(rest) > 0 || l.running > 0; {
		i := l.findNext(rest)
		if i < 0 {
			select {
			case o := <-ended:
				l.running--
				total.merge(o.report)
				if len(o.report.failed) == 0 && ctx.Err() == nil {
					c.recordPass(o)
				}
			case <-looks.C:
				l.lookAtCPUs(usageNow(), runtime.NumCPU())
			}
			continue
		}
		s := rest[i]
		rest = slices.Delete(rest, i, i+1)
		if why := c.refuseStep(ctx, &s); why != "" {
			left = append(left, leftOut{s.name, why})
			continue
		}
		c.hashStep(&s) // of the files that the step is about to read
		l.beginStep()
		go func() { ended <- c.do(ctx, &s) }()
	}
	return total, left
}

// recordPass notes the pass of a step.
func (c *check) recordPass(o outcome) {
	c.notePace(c.estimateTime(o.step), o.took)
	p := pass{Files: c.hashStep(o.step), Time: time.Now(), Seconds: o.took.Seconds(), Slowness: c.slowness}
	if err := c.record.addPass(o.step.name, p); err != nil {
		c.printLine("%s: the check could not note its pass: %v", o.step.name, err)
	}
}

// sameMachine is the largest ratio of two measurements of slowness on one machine.
const sameMachine = 1.5

// estimateTime returns the time that a step will take, from its last pass here or from the table.
func (c *check) estimateTime(s *step) time.Duration {
	if last, ok := c.record.passes[s.name]; ok && last.Slowness > 0 {
		ratio := c.slowness / last.Slowness
		if ratio < sameMachine && ratio > 1/sameMachine {
			ratio = 1
		}
		return time.Duration(last.Seconds * ratio * float64(time.Second))
	}
	return time.Duration(s.minutes * c.slowness * float64(time.Minute))
}

// notePace notes how long a step took that has passed, beside its estimate.
func (c *check) notePace(estimate, took time.Duration) {
	c.estimated += estimate
	c.taken += took
}

// measurePace returns by how much longer than estimated the steps of this run take: at least 1.
func (c *check) measurePace() float64 {
	if c.estimated < time.Minute {
		return 1
	}
	return max(1, float64(c.taken)/float64(c.estimated))
}

// refuseStep returns a reason not to begin a step: the time is used up, or the step would end after
// that. It returns "" if the step may begin. The time in which the check builds what tests need, such as
// a cluster, does not count, up to half of the budget: a machine that has nothing gets that much longer.
func (c *check) refuseStep(ctx context.Context, s *step) string {
	if ctx.Err() != nil {
		return "the check was interrupted"
	}
	if c.budget == 0 {
		return ""
	}
	limit := c.begin.Add(c.budget + min(c.builder.timeSpent(), c.budget/2))
	need := time.Duration(float64(c.estimateTime(s)) * c.measurePace())
	switch {
	case time.Now().After(limit):
		return fmt.Sprintf("the %.0f minutes of CHECK_MINUTES are used up", c.budget.Minutes())
	case time.Now().Add(need).After(limit):
		return fmt.Sprintf("it takes about %.0f minutes, and %.0f are left of CHECK_MINUTES", need.Minutes(), time.Until(limit).Minutes())
	}
	return ""
}

// limitTime returns the time after which go ends the tests of a package of the step, because one hangs.
// With a budget, that is three times as long as the step should take, and no longer than the budget allows.
func (c *check) limitTime(s *step) time.Duration {
	if c.budget == 0 {
		return time.Duration(80 * c.slowness * float64(time.Minute))
	}
	const least = 10 * time.Minute // no test is cut short because it began late
	return max(least, min(least+3*c.estimateTime(s), time.Until(c.begin.Add(c.budget*7/5))))
}

// printLine prints a line about a step, with the time since the beginning.
func (c *check) printLine(format string, args ...any) {
	at := time.Since(c.begin)
	fmt.Printf("== %dm%02ds %s\n", int(at.Minutes()), int(at.Seconds())%60, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
