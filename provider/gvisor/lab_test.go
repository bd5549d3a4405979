//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// waitLimit is the time that a test waits for something that is bound to happen.
var waitLimit = testenv.Scale(20 * time.Second)

// A lab is a provider for one test, with the test's steps as methods. A step that does not
// succeed fails the test.
type lab struct {
	*gvisor.Provider
	opts gvisor.Options
	t    testing.TB
}

// newLab opens a provider that is closed when the test ends; anything left then is an
// error.
func newLab(t testing.TB, change ...func(*gvisor.Options)) *lab {
	t.Helper()
	needGVisor(t)
	opts := freshOptions(t)
	for _, f := range change {
		f(&opts)
	}
	return openLab(t, opts)
}

// openLab opens one more provider over the directories in opts.
func openLab(t testing.TB, opts gvisor.Options) *lab {
	t.Helper()
	p, err := gvisor.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &lab{p, opts, t}
}

// ctx returns a context that ends with the test, or when the test takes too long.
func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), 4*waitLimit)
	l.t.Cleanup(cancel)
	return ctx
}

// create makes a sandbox that is removed when the test ends.
func (l *lab) create(spec atoll.Spec) atoll.Sandbox {
	l.t.Helper()
	sb, err := l.Create(l.ctx(), &spec)
	if err != nil {
		l.t.Fatalf("create: %v", err)
	}
	l.t.Cleanup(func() { l.remove(sb) })
	return sb
}

func (l *lab) remove(sb atoll.Sandbox) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		l.t.Errorf("remove: %v", err)
	}
}

func (l *lab) status(sb atoll.Sandbox) atoll.Status {
	l.t.Helper()
	st, err := sb.Status(l.ctx())
	if err != nil {
		l.t.Fatalf("status: %v", err)
	}
	return st
}

// awaitState waits until the sandbox is in that state.
func (l *lab) awaitState(sb atoll.Sandbox, want atoll.State) (st atoll.Status) {
	l.t.Helper()
	l.poll(func() error {
		if st = l.status(sb); st.State != want {
			return fmt.Errorf("state %s (%s), want %s", st.State, st.Reason, want)
		}
		return nil
	})
	return st
}

// poll calls f until it succeeds.
func (l *lab) poll(f func() error) {
	l.t.Helper()
	deadline := time.Now().Add(waitLimit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// sh runs a script and returns what it printed, without the last newline. It
// must succeed.
func (l *lab) sh(sb atoll.Sandbox, script string) string {
	l.t.Helper()
	return l.run(sb, "sh", "-c", script)
}

// run is sh for a program without a shell.
func (l *lab) run(sb atoll.Sandbox, args ...string) string {
	l.t.Helper()
	var stderr bytes.Buffer
	out, err := atoll.Output(l.ctx(), sb, &atoll.Command{Args: args, Stderr: &stderr})
	if err != nil {
		l.t.Fatalf("%q: %v\n%s%s", args, err, out, &stderr)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// failSh runs a script that must fail and returns everything that it printed.
func (l *lab) failSh(sb atoll.Sandbox, script string) string {
	l.t.Helper()
	var out bytes.Buffer
	err := atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if _, ok := errors.AsType[*atoll.ExitError](err); !ok {
		l.t.Errorf("%s: %v, want it to fail\n%s", script, err, &out)
	}
	return out.String()
}

// must checks a step that only returns an error.
func (l *lab) must(what string, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
}

// wantKind checks the kind of an error, and that its text contains says.
func wantKind(t testing.TB, what string, err error, want atoll.Kind, says ...string) {
	t.Helper()
	if got := atoll.KindOf(err); got != want {
		t.Errorf("%s: %v (%q), want %q", what, err, got, want)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q does not say %q", what, err, s)
		}
	}
}

// A screen stores what is written to it for tests that wait for it.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func newScreen() *screen { return &screen{} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// expect waits until the text has appeared, and returns everything up to its end.
func (s *screen) expect(t testing.TB, want string) string {
	t.Helper()
	return s.expectAfter(t, 0, want)
}

// expectAfter is expect for text at that offset or later.
func (s *screen) expectAfter(t testing.TB, from int, want string) string {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
		text := s.String()
		if i := strings.Index(text[min(from, len(text)):], want); i >= 0 {
			return text[:from+i+len(want)]
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %q on the screen:\n%s", want, text)
		}
	}
}
