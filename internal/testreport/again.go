package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// mostAgain is how many failed tests are worth a second look: if there are more, it is not
// chance.
const mostAgain = 8

// A second chance is for what a busy machine can bring about. What ends a test's program, and
// a data race, are faults each time.
var hopeless = regexp.MustCompile(`WARNING: DATA RACE|race detected during execution of test|^(panic|fatal error): |^FAIL\t\S+ \[`)

// chances are the tests that are worth a second look, each as package and pattern of go test
// -run; none if anything has failed for which that is no answer.
func (r *report) chances() []string {
	var lines []string
	for _, f := range r.failed {
		if !r.hasChild(f) {
			lines = append(lines, f.pkg+" "+pattern(f.test))
		}
	}
	if r.hopeless || len(lines) > mostAgain {
		return nil
	}
	return lines
}

// judge looks at what was said as something failed.
func (r *report) judge(output []string) {
	r.hopeless = r.hopeless || slices.ContainsFunc(output, hopeless.MatchString)
}

// hasChild reports whether a part of this test is what failed.
func (r *report) hasChild(of failure) bool {
	for _, f := range r.failed {
		if f.pkg == of.pkg && strings.HasPrefix(f.test, of.test+"/") {
			return true
		}
	}
	return false
}

// pattern matches that test alone.
func pattern(test string) string {
	levels := strings.Split(test, "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	return strings.Join(levels, "/")
}

// noteChances writes them into a file, if one is named.
func (r *report) noteChances(name string) error {
	if name == "" {
		return nil
	}
	var text strings.Builder
	for _, line := range r.chances() {
		fmt.Fprintln(&text, line)
	}
	return os.WriteFile(name, []byte(text.String()), 0o600)
}
