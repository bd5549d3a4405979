package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errNoTest says that a step's patterns match no test.
var errNoTest = errors.New("no test ran")

// An event is one line of go test -json; see go doc test2json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of what is being built
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
	Key, Value  string // of an attribute
}

// A report reads what "go test -json" prints and tells a person what matters: each package as it
// ends, all that a failed test printed, and at the end why tests were skipped, which took longest,
// which failed, and the sum.
type report struct {
	out     io.Writer
	w       bytes.Buffer        // what one event makes it say, written at once
	output  map[string][]string // by package and test, until it has ended
	builds  map[string][]string // by import path
	skips   map[string][]string // the packages of skipped tests, by reason
	reasons []string            // in the order of their first
	took    []timed             // packages, tests, and groups of tests
	failed  []failure
	passed  int
	skipped int
	used    time.Duration // of CPU, by the command of the step and all that it waited for

	promises map[string][]string // the tests that kept each promise of the conformance suite
	promise  map[string]string   // by package and test, until it has ended

	covers float64 // the least part of a package that its tests must reach, in percent

	cpu   bool             // measure CPU time, too: nothing else runs on the machine
	begun map[string]usage // by package and test
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string][]string{}, builds: map[string][]string{}, skips: map[string][]string{}, begun: map[string]usage{},
		promises: map[string][]string{}, promise: map[string]string{}}
}

func (r *report) readEvents(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(&r.w, lines.Text()) // go itself has something to say
		} else {
			r.addEvent(e)
		}
		if err := r.flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

// flush writes the pending report at once, so that reports of several steps do not mix.
func (r *report) flush() error {
	defer r.w.Reset()
	_, err := r.out.Write(r.w.Bytes())
	return err
}

func (r *report) addEvent(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "run", "start":
		if r.cpu {
			r.begun[key] = usageNow()
		}
	case "attr":
		if e.Key == "promise" {
			r.promise[key] = e.Value
		}
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, r.output[key])
		}
		delete(r.output, key)
	}
}

// A timed is the time of a package, a test or a group of tests.
type timed struct {
	name         string
	pkg          bool    // it is a whole package
	seconds, cpu float64 // of wall time, and of all CPUs together
}

// noteTime notes the time of a package, or of a test of the top two levels.
func (r *report) noteTime(e event) {
	if strings.Count(e.Test, "/") > 1 {
		return
	}
	t := timed{name: strings.TrimSpace(path.Base(e.Package) + " " + e.Test), pkg: e.Test == "", seconds: e.Elapsed}
	if begun, ok := r.begun[e.Package+" "+e.Test]; ok {
		now := usageNow()
		t.cpu = (now.cpu - begun.cpu).Seconds()
		t.seconds = now.at.Sub(begun.at).Seconds()
	}
	r.took = append(r.took, t)
}

func (r *report) endTest(e event, output []string) {
	r.noteTime(e)
	r.endPromise(e)
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed = append(r.failed, failure{e.Package, e.Test, excerptOf(output)})
		fmt.Fprintf(&r.w, "--- %s %s\n", e.Package, e.Test)
		r.printOutput(output)
	case "skip":
		r.skipped++
		reason := reasonOf(output)
		if _, ok := r.skips[reason]; !ok {
			r.reasons = append(r.reasons, reason)
		}
		r.skips[reason] = append(r.skips[reason], path.Base(e.Package))
	}
}

func (r *report) endPackage(e event) {
	r.noteTime(e)
	word := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "--"}[e.Action]
	fmt.Fprintf(&r.w, "%-4s %7.1fs  %s\n", word, e.Elapsed, e.Package)
	if e.Action != "fail" {
		r.checkCoverage(e.Package)
		return
	}
	own := slices.Concat(r.builds[e.FailedBuild], r.output[e.Package+" "])
	r.printOutput(own)
	// A test that never ended: a panic or the time limit took the process.
	for key, output := range r.output {
		if test, ok := strings.CutPrefix(key, e.Package+" "); ok && test != "" {
			r.failed = append(r.failed, failure{e.Package, test + " (did not end)", excerptOf(output)})
			fmt.Fprintf(&r.w, "--- %s %s (did not end)\n", e.Package, test)
			r.printOutput(output)
			delete(r.output, key)
		}
	}
	if !slices.ContainsFunc(r.failed, func(f failure) bool { return f.pkg == e.Package }) {
		r.failed = append(r.failed, failure{e.Package, itself, excerptOf(own)})
	}
	r.printFailed(e.Package)
}

// checkCoverage fails a package whose tests do not reach enough of it.
func (r *report) checkCoverage(pkg string) {
	if r.covers == 0 {
		return
	}
	reached := 0.0
	for _, line := range r.output[pkg+" "] {
		if m := coverage.FindStringSubmatch(line); m != nil {
			reached, _ = strconv.ParseFloat(m[1], 64) // the pattern matches numbers only
		}
	}
	fmt.Fprintf(&r.w, "    the tests reach %.1f %% of it\n", reached)
	if reached < r.covers {
		r.failed = append(r.failed, failure{pkg, itself, []string{fmt.Sprintf("the tests reach %.1f %% of the statements, and must reach %.0f %%", reached, r.covers)}})
		r.printFailed(pkg)
	}
}

// itself stands for the test where none of a package's failed: it does not build, or its
// program did not end well after all of them.
const itself = "(the package itself)"

// printOutput shows what a test printed, without the lines that say that it runs.
func (r *report) printOutput(output []string) {
	for _, line := range output {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprint(&r.w, "    ", strings.TrimRight(line, "\n"), "\n")
		}
	}
}

var (
	position = regexp.MustCompile(`^\s*\S+\.go:\d+(:\d+)?: `)
	fatal    = regexp.MustCompile(`^(panic|fatal error|goleak): `)
	coverage = regexp.MustCompile(`coverage: ([0-9]+(?:\.[0-9]+)?)% of statements`)
	gosOwn   = regexp.MustCompile(`^(PASS|FAIL|ok  |exit status|coverage:|=== |# |\s*--- )`)
)

// reasonOf is the last thing that a skipped test said.
func reasonOf(output []string) string {
	for _, line := range slices.Backward(output) {
		if position.MatchString(line) {
			return strings.TrimSpace(position.ReplaceAllString(line, ""))
		}
	}
	return "it gave no reason"
}

// printSkips prints each reason with the number of tests that it skipped, and their packages.
func (r *report) printSkips() {
	if len(r.reasons) > 0 {
		fmt.Fprintln(&r.w, "\nskipped:")
	}
	for _, reason := range r.reasons {
		packages := r.skips[reason]
		n := len(packages)
		slices.Sort(packages)
		fmt.Fprintf(&r.w, "  %4d  %s (%s)\n", n, reason, strings.Join(slices.Compact(packages), ", "))
	}
}

// A failure is a test that failed, and an excerpt of what it said.
type failure struct {
	pkg, test string
	said      []string
}

// excerptOf is the beginning and the end of what a test said itself: the beginning often has the cause. Servers
// that it ran may have said much more; excerptOf is about that if there is nothing else.
func excerptOf(output []string) []string {
	var lines, rest []string
	for _, line := range output {
		switch {
		case position.MatchString(line) || fatal.MatchString(line):
			lines = append(lines, strings.TrimSpace(line))
		case !gosOwn.MatchString(line):
			rest = append(rest, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		lines = rest
	}
	if between := len(lines) - 2*mostSaid; between > 0 {
		return slices.Concat(lines[:mostSaid], []string{fmt.Sprintf("[%d more lines]", between)}, lines[len(lines)-mostSaid:])
	}
	return lines
}

// mostSaid is the number of lines that printFailed repeats of the beginning and of the end of a failure.
const mostSaid = 3

// printFailed names the failed tests of a package again, each with its excerpt, or those of all packages if
// pkg is empty. The end of the output alone must be enough to see a failure.
func (r *report) printFailed(pkg string) {
	for _, f := range r.failed {
		if pkg == "" || pkg == f.pkg {
			f.printFailure(&r.w)
		}
	}
}

func (f failure) printFailure(w io.Writer) {
	fmt.Fprintf(w, "  failed: %s %s\n", f.pkg, f.test)
	for _, line := range f.said {
		fmt.Fprintln(w, "   ", line)
	}
}

// addFailure notes that a command failed.
func (r *report) addFailure(what string, err error) {
	r.failed = append(r.failed, failure{pkg: what, test: itself, said: []string{fmt.Sprint(err)}})
}

// merge adds what another report has seen.
func (r *report) merge(other *report) {
	for _, reason := range other.reasons {
		if _, ok := r.skips[reason]; !ok {
			r.reasons = append(r.reasons, reason)
		}
		r.skips[reason] = append(r.skips[reason], other.skips[reason]...)
	}
	for name, places := range other.promises {
		r.promises[name] = append(r.promises[name], places...)
	}
	r.took = append(r.took, other.took...)
	r.failed = append(r.failed, other.failed...)
	r.passed += other.passed
	r.skipped += other.skipped
}

// endPromise notes where a promise of the conformance suite was kept, if the test is one.
func (r *report) endPromise(e event) {
	key := e.Package + " " + e.Test
	name, ok := r.promise[key]
	if !ok {
		return
	}
	delete(r.promise, key)
	places := r.promises[name] // a promise that is kept nowhere is in the table, too
	if e.Action == "pass" {
		test := path.Dir(path.Dir(e.Test)) // above the promise and its group
		places = append(places, path.Base(e.Package)+" "+test)
	}
	r.promises[name] = places
}

// writePromises writes a table of the suite's promises and the places that kept each.
func (r *report) writePromises(w io.Writer) error {
	names := slices.Sorted(maps.Keys(r.promises))
	if _, err := fmt.Fprintf(w, "# The %d promises of the conformance suite, and the tests that kept them\n\n| promise | places | tests |\n| --- | --: | --- |\n", len(names)); err != nil {
		return err
	}
	for _, name := range names {
		places := slices.Clone(r.promises[name])
		slices.Sort(places)
		places = slices.Compact(places)
		if _, err := fmt.Fprintf(w, "| %s | %d | %s |\n", name, len(places), strings.Join(places, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// printPromises prints how many promises of the conformance suite were kept and, if the whole check ran,
// the names of those that no test kept.
func (r *report) printPromises(whole bool) {
	if len(r.promises) == 0 {
		return
	}
	var nowhere []string
	for _, name := range slices.Sorted(maps.Keys(r.promises)) {
		if len(r.promises[name]) == 0 {
			nowhere = append(nowhere, name)
		}
	}
	fmt.Fprintf(&r.w, "\n%d of %d promises of the conformance suite were kept somewhere\n", len(r.promises)-len(nowhere), len(r.promises))
	if !whole {
		return
	}
	for _, name := range nowhere {
		fmt.Fprintf(&r.w, "  nowhere: %s\n", name)
	}
}

// slowest is the number of packages, and of tests and groups, that the summary names.
const slowest = 10

// printSlowest prints the packages that took longest, and the tests and groups that did.
func (r *report) printSlowest() {
	slices.SortStableFunc(r.took, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, pkg := range []bool{true, false} {
		fmt.Fprintln(&r.w, map[bool]string{true: "\nthe slowest packages:", false: "\nthe slowest tests and groups:"}[pkg])
		left := slowest
		for _, t := range r.took {
			if t.pkg == pkg && left > 0 {
				fmt.Fprintf(&r.w, "  %7.1fs  %s\n", t.seconds, t.name)
				left--
			}
		}
	}
}

// printTimes prints the CPU and wall seconds of each package, and of each test and group of a
// second or more, those with most CPU first.
func (r *report) printTimes() {
	slices.SortStableFunc(r.took, func(a, b timed) int { return cmp.Compare(b.cpu, a.cpu) })
	fmt.Fprintln(&r.w, "\n|   CPU s |  wall s | package, test or group |\n| ------: | ------: | --- |")
	for _, t := range r.took {
		if t.pkg || t.seconds >= 1 || t.cpu >= 1 {
			fmt.Fprintf(&r.w, "| %7.1f | %7.1f | %s |\n", t.cpu, t.seconds, t.name)
		}
	}
}

// printSummary prints the end of the report and reports whether at least one test passed and none failed.
func (r *report) printSummary(whole bool) bool {
	r.printSkips()
	r.printSlowest()
	r.printPromises(whole)
	r.printFailed("")
	fmt.Fprintf(&r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), r.skipped)
	err := r.flush()
	return err == nil && r.passed > 0 && len(r.failed) == 0
}

// A usage is the CPU time that the machine had used at a moment, on all its CPUs together.
type usage struct {
	at  time.Time
	cpu time.Duration
}
