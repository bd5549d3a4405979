package testenv

import (
	"errors"
	"os"
	"runtime"
	"testing"
)

// A recorder is a testing.TB that records how the test ended.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(string, ...any) {
	r.end = "skip"
	runtime.Goexit()
}

func (r *recorder) Fatalf(string, ...any) {
	r.end = "fail"
	runtime.Goexit()
}

func TestNeed(t *testing.T) {
	there := Part{what: "air", missing: func() error { return nil }}
	gone := errors.New("gone")
	tests := []struct {
		name  string
		parts []Part
		ci    string
		want  string
	}{
		{"nothing", nil, "true", ""},
		{"present", []Part{there}, "true", ""},
		{"installable", []Part{there, {what: "x", install: "x", missing: func() error { return gone }}}, "", "skip"},
		{"installable in CI", []Part{{what: "x", install: "x", missing: func() error { return gone }}}, "true", "fail"},
		{"made by a script", []Part{{what: "x", script: "scripts/x", missing: func() error { return gone }}}, "", "skip"},
		{"made by a script, in CI", []Part{{what: "x", script: "scripts/x", missing: func() error { return gone }}}, "true", "fail"},
		{"kernel in CI", []Part{{what: "x", missing: func() error { return gone }}}, "true", "skip"},
		{"no such program", []Part{Program("no-such-program", "nothing")}, "", "skip"},
		{"no such agent, in CI", []Part{Agent("no-such-agent")}, "true", "skip"},
		{"program", []Part{Program("sh", "dash")}, "true", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CI", test.ci)
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				Need(r, test.parts...)
			}()
			<-done
			if r.end != test.want {
				t.Errorf("got %q, want %q", r.end, test.want)
			}
		})
	}
}

func TestBusyboxIsStatic(t *testing.T) {
	program, err := os.ReadFile(Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(program) < 100<<10 || !isStatic(program) {
		t.Errorf("%d bytes, static: %v; want a static program", len(program), isStatic(program))
	}
}

func TestStatic(t *testing.T) {
	if isStatic([]byte("\x7fELF.../lib64/ld-linux-x86-64.so.2...")) {
		t.Error("a program with a loader counts as static")
	}
}
