// Command testreport reads what "go test -json" prints and says what a person
// wants to know of it: each package as it ends, all that a failed test printed,
// at the end why tests were skipped, which took longest, which failed, and the
// sum. Its exit code is 1 unless at least one test passed and none failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	skips := flag.Bool("skips", true, "say why tests were skipped")
	failed := flag.String("failed", "", "add what failed to this file, too")
	again := flag.String("again", "", "write into this file which tests may be run once more; none if that would not help")
	flag.Parse()
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if *skips {
		r.printSkips()
	}
	r.printSlowest()
	r.printFailed("")
	if err := r.noteFailed(*failed); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err := r.noteChances(*again); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if !r.finish() {
		os.Exit(1)
	}
}

// An event is one line of go test -json; see go doc test2json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of what is being built
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// A report is what has been seen so far.
type report struct {
	w       io.Writer
	output  map[string][]string // by package and test, until it has ended
	builds  map[string][]string // by import path
	skips   map[string][]string // the packages of skipped tests, by reason
	reasons []string            // in the order of their first
	took    []timed             // tests and groups of them
	failed  []failure
	passed  int
	skipped int

	hopeless bool // what failed fails again
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[string][]string{}, builds: map[string][]string{}, skips: map[string][]string{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(r.w, lines.Text()) // go itself has something to say
			continue
		}
		r.add(e)
	}
	return lines.Err()
}

func (r *report) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
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

// A timed is how long a test took.
type timed struct {
	name    string
	seconds float64
}

func (r *report) endTest(e event, output []string) {
	if strings.Count(e.Test, "/") <= 1 {
		r.took = append(r.took, timed{path.Base(e.Package) + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed = append(r.failed, failure{e.Package, e.Test, said(output)})
		r.judge(output)
		fmt.Fprintf(r.w, "--- %s %s\n", e.Package, e.Test)
		r.print(output)
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
	word := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "--"}[e.Action]
	fmt.Fprintf(r.w, "%-4s %7.1fs  %s\n", word, e.Elapsed, e.Package)
	if e.Action != "fail" {
		return
	}
	own := slices.Concat(r.builds[e.FailedBuild], r.output[e.Package+" "])
	r.print(own)
	r.judge(own)
	// A test that never ended: a panic or the time limit took the process.
	for key, output := range r.output {
		if test, ok := strings.CutPrefix(key, e.Package+" "); ok && test != "" {
			r.failed = append(r.failed, failure{e.Package, test + " (did not end)", said(output)})
			r.hopeless = true
			fmt.Fprintf(r.w, "--- %s %s (did not end)\n", e.Package, test)
			r.print(output)
			delete(r.output, key)
		}
	}
	if !slices.ContainsFunc(r.failed, func(f failure) bool { return f.pkg == e.Package }) {
		r.failed = append(r.failed, failure{e.Package, itself, said(own)})
		r.hopeless = true
	}
	r.printFailed(e.Package)
}

// itself stands for the test where none of a package's failed: it does not build, or its
// program did not end well after all of them.
const itself = "(the package itself)"

// print shows what a test printed, without the lines that say that it runs.
func (r *report) print(output []string) {
	for _, line := range output {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprint(r.w, "    ", strings.TrimRight(line, "\n"), "\n")
		}
	}
}

var (
	position = regexp.MustCompile(`^\s*\S+\.go:\d+(:\d+)?: `)
	fatal    = regexp.MustCompile(`^(panic|fatal error|goleak): `)
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

// printSkips says for each reason how many tests of which packages it skipped.
func (r *report) printSkips() {
	if len(r.reasons) > 0 {
		fmt.Fprintln(r.w, "\nskipped:")
	}
	for _, reason := range r.reasons {
		packages := r.skips[reason]
		n := len(packages)
		slices.Sort(packages)
		fmt.Fprintf(r.w, "  %4d  %s (%s)\n", n, reason, strings.Join(slices.Compact(packages), ", "))
	}
}

// A failure is a test that failed, and the last things that it said.
type failure struct {
	pkg, test string
	said      []string
}

// said is the last of what a test said itself; servers that it ran may have said much more. It
// is the last of that if there is nothing else.
func said(output []string) []string {
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
	return lines[max(0, len(lines)-mostSaid):]
}

// mostSaid is how many of its lines a failure is shown with once more.
const mostSaid = 3

// printFailed says once more, and shortly, which tests of a package failed; of all if none is
// named. Whoever sees a part of the output sees this, next to the package or at its end.
func (r *report) printFailed(pkg string) {
	for _, f := range r.failed {
		if pkg == "" || pkg == f.pkg {
			f.print(r.w)
		}
	}
}

func (f failure) print(w io.Writer) {
	fmt.Fprintf(w, "  failed: %s %s\n", f.pkg, f.test)
	for _, line := range f.said {
		fmt.Fprintln(w, "   ", line)
	}
}

// noteFailed adds the same of all to a file, if one is named.
func (r *report) noteFailed(name string) error {
	if name == "" || len(r.failed) == 0 {
		return nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for _, of := range r.failed {
		of.print(f)
	}
	return f.Close()
}

// printSlowest says which tests took longest, of those at the top and of what is in them.
func (r *report) printSlowest() {
	slices.SortStableFunc(r.took, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintln(r.w, "\nthe slowest:")
	for _, t := range r.took[:min(len(r.took), slowest)] {
		fmt.Fprintf(r.w, "  %7.1fs  %s\n", t.seconds, t.name)
	}
}

// slowest is how many of them are named.
const slowest = 30

// finish prints the sum and reports whether all is well.
func (r *report) finish() bool {
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), r.skipped)
	return r.passed > 0 && len(r.failed) == 0
}
