package main

import (
	"cmp"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	tests := []struct {
		name, in string
		ok       bool
		want     []string // in the output, in this order
	}{
		{"good", `
{"Action":"run","Package":"a/b","Test":"TestX"}
{"Action":"output","Package":"a/b","Test":"TestX","Output":"--- PASS: TestX (0.00s)\n"}
{"Action":"pass","Package":"a/b","Test":"TestX","Elapsed":0.5}
{"Action":"pass","Package":"a/b","Test":"TestY/group/one","Elapsed":3}
{"Action":"pass","Package":"a/b","Test":"TestY/group","Elapsed":1}
{"Action":"pass","Package":"a/b","Elapsed":1.25}`,
			true, []string{"ok       1.2s  a/b", "the slowest packages:\n      1.2s  b\n", "the slowest tests and groups:\n      1.0s  b TestY/group\n      0.5s  b TestX\n", "3 passed, 0 failed, 0 skipped"}},
		{"failed", `
{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:5: got 1, want 2\n"}
{"Action":"fail","Package":"a","Test":"TestX"}
{"Action":"fail","Package":"a"}`,
			false, []string{"--- a TestX", "got 1, want 2", "FAIL", "  failed: a TestX\n    x_test.go:5: got 1, want 2\n", "the slowest packages:", "  failed: a TestX\n", "0 passed, 1 failed, 0 skipped"}},
		{"failed with much output", `
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:1: the cause\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:2: two\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:3: three\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:4: four\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:5: five\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:6: six\n"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:7: seven\n"}
{"Action":"fail","Package":"a","Test":"TestX"}
{"Action":"fail","Package":"a"}`,
			false, []string{"  failed: a TestX\n    x_test.go:1: the cause\n    x_test.go:2: two\n    x_test.go:3: three\n    [1 more lines]\n    x_test.go:5: five\n    x_test.go:6: six\n    x_test.go:7: seven\n"}},
		{"skipped", `
{"Action":"output","Package":"m/a","Test":"TestX","Output":"    x_test.go:5: needs root: this is uid 7\n"}
{"Action":"output","Package":"m/a","Test":"TestX","Output":"--- SKIP: TestX (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestX"}
{"Action":"pass","Package":"m/a","Test":"TestY"}
{"Action":"pass","Package":"m/a"}`,
			true, []string{"skipped:", "1  needs root: this is uid 7 (a)", "1 passed, 0 failed, 1 skipped"}},
		{"does not build", `
{"Action":"build-output","ImportPath":"a [a.test]","Output":"# a [a.test]\n"}
{"Action":"build-output","ImportPath":"a [a.test]","Output":"./a.go:3:7: undefined: y\n"}
{"Action":"build-fail","ImportPath":"a [a.test]"}
{"Action":"output","Package":"a","Output":"FAIL\ta [build failed]\n"}
{"Action":"fail","Package":"a","FailedBuild":"a [a.test]"}
{"Action":"pass","Package":"b","Test":"TestY"}
{"Action":"pass","Package":"b"}`,
			false, []string{"undefined: y", "build failed", "the slowest packages:", "  failed: a (the package itself)\n    ./a.go:3:7: undefined: y\n", "1 passed, 1 failed"}},
		{"goroutines are left", `
{"Action":"pass","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Output":"PASS\n"}
{"Action":"output","Package":"a","Output":"goleak: Errors on successful test run: found unexpected goroutines:\n"}
{"Action":"output","Package":"a","Output":"[Goroutine 7 in state select]\n"}
{"Action":"output","Package":"a","Output":"FAIL\ta\t0.1s\n"}
{"Action":"fail","Package":"a"}`,
			false, []string{"the slowest packages:", "  failed: a (the package itself)\n    goleak: Errors on successful test run: found unexpected goroutines:\n", "1 passed, 1 failed"}},
		{"the program did not end well", `
{"Action":"pass","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Output":"PASS\n"}
{"Action":"output","Package":"a","Output":"rm: it is busy\n"}
{"Action":"output","Package":"a","Output":"exit status 1\n"}
{"Action":"output","Package":"a","Output":"FAIL\ta\t0.1s\n"}
{"Action":"fail","Package":"a"}`,
			false, []string{"the slowest packages:", "  failed: a (the package itself)\n    rm: it is busy\n", "1 passed, 1 failed"}},
		{"died", `
{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Test":"TestX","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"a"}`,
			false, []string{"TestX (did not end)", "panic: test timed out", "  failed: a TestX (did not end)\n    panic: test timed out\n", "0 passed, 1 failed"}},
		{"nothing ran", `{"Action":"skip","Package":"a"}`, false, []string{"0 passed, 0 failed, 0 skipped"}},
		{"no events", "go: no such tool", false, []string{"go: no such tool"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.readEvents(strings.NewReader(strings.TrimPrefix(test.in, "\n"))); err != nil {
				t.Fatal(err)
			}
			if ok := r.printSummary(false); ok != test.ok {
				t.Errorf("printSummary: got %v, want %v", ok, test.ok)
			}
			rest := out.String()
			for _, want := range test.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("no %q in its place in\n%s", want, out.String())
				}
				rest = after
			}
			if strings.Contains(out.String(), "=== RUN") {
				t.Errorf("shows that tests run:\n%s", out.String())
			}
		})
	}
}

func TestCoverage(t *testing.T) {
	actions := map[string]string{"no test files": "skip"}
	for line, want := range map[string]string{
		"coverage: 90.0% of statements": "",
		"coverage: 100% of statements":  "",
		"coverage: 89.9% of statements": "  failed: a (the package itself)\n    the tests reach 89.9 % of the statements, and must reach 90 %\n",
		"coverage: [no statements]":     "must reach 90 %",
		"PASS":                          "must reach 90 %",
		"no test files":                 "must reach 90 %",
	} {
		var out strings.Builder
		r := newReport(&out)
		r.covers = 90
		if err := r.readEvents(strings.NewReader(`{"Action":"output","Package":"a","Output":"` + line + `\n"}` + "\n" + `{"Action":"` + cmp.Or(actions[line], "pass") + `","Package":"a"}`)); err != nil {
			t.Fatal(err)
		}
		if failed := len(r.failed) > 0; failed != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("after %q it says\n%s", line, out.String())
		}
	}
}

func TestPromises(t *testing.T) {
	in := `{"Action":"attr","Package":"m/a","Test":"TestX/mock/exec/one","Key":"promise","Value":"exec/one"}
{"Action":"pass","Package":"m/a","Test":"TestX/mock/exec/one"}
{"Action":"attr","Package":"m/a","Test":"TestX/mock/exec/two","Key":"promise","Value":"exec/two"}
{"Action":"skip","Package":"m/a","Test":"TestX/mock/exec/two"}
{"Action":"pass","Package":"m/a","Test":"TestX/mock/exec"}
{"Action":"pass","Package":"m/a"}`
	var out, table strings.Builder
	r, total := newReport(&out), newReport(&out)
	if err := r.readEvents(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	total.merge(r)
	total.printSummary(true)
	if want := "1 of 2 promises of the conformance suite were kept somewhere\n  nowhere: exec/two\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	if err := total.writePromises(&table); err != nil {
		t.Fatal(err)
	}
	if want := "| exec/one | 1 | a TestX/mock |\n| exec/two | 0 |  |\n"; !strings.HasSuffix(table.String(), want) {
		t.Errorf("the table ends otherwise than in %q:\n%s", want, table.String())
	}
}
