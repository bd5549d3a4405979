package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChances(t *testing.T) {
	fail := func(pkg, test string) string {
		return `{"Action":"fail","Package":"` + pkg + `","Test":"` + test + `"}` + "\n"
	}
	const end = `{"Action":"fail","Package":"m/a"}`
	tests := []struct {
		name, in, want string
	}{
		{"nothing failed", `{"Action":"pass","Package":"m/a","Test":"TestX"}`, ""},
		{"one", fail("m/a", "TestX") + end, "m/a ^TestX$\n"},
		{"the part that failed, of two packages", fail("m/a", "TestX/one/1.5s+") + fail("m/a", "TestX/one") + fail("m/a", "TestX") + end + "\n" + fail("m/b", "TestXY"),
			"m/a ^TestX$/^one$/^1\\.5s\\+$\nm/b ^TestXY$\n"},
		{"a data race", `{"Action":"output","Package":"m/a","Test":"TestX","Output":"    testing.go:1617: race detected during execution of test\n"}` + "\n" + fail("m/a", "TestX") + end, ""},
		{"a data race, between tests", `{"Action":"output","Package":"m/a","Output":"WARNING: DATA RACE\n"}` + "\n" + fail("m/a", "TestX") + end, ""},
		{"a panic", `{"Action":"output","Package":"m/a","Test":"TestY","Output":"panic: no\n"}` + "\n" + fail("m/a", "TestX") + end, ""},
		{"what does not build", `{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}` + "\n" + end, ""},
		{"what is no test", fail("m/b", "TestX") + end, ""},
		{"too many", strings.Repeat(fail("m/a", "TestX"), mostAgain+1) + end, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newReport(io.Discard)
			if err := r.read(strings.NewReader(test.in)); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(t.TempDir(), "again")
			if err := r.noteChances(name); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(name)
			if err != nil || string(got) != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}
