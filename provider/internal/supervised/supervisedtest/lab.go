//go:build linux

// Package supervisedtest has the steps of tests of providers whose sandboxes have supervisors.
package supervisedtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// WaitLimit is the time that a test waits for something that is bound to happen.
var WaitLimit = testenv.Scale(20 * time.Second)

// A Lab is a provider for one test, with the test's steps as methods. A step that does not
// succeed fails the test.
type Lab struct {
	atoll.Provider
	Places
	T testing.TB
}

// Context returns a context that ends with the test, or when the test takes too long.
func (l *Lab) Context() context.Context {
	ctx, cancel := context.WithTimeout(l.T.Context(), 4*WaitLimit)
	l.T.Cleanup(cancel)
	return ctx
}

// Must checks a step that only returns an error.
func (l *Lab) Must(what string, err error) {
	l.T.Helper()
	if err != nil {
		l.T.Fatalf("%s: %v", what, err)
	}
}

// WantKind checks the kind of an error, and that its text contains says.
func WantKind(t testing.TB, what string, err error, want atoll.Kind, says ...string) {
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

// Poll calls f until it succeeds.
func (l *Lab) Poll(f func() error) {
	l.T.Helper()
	deadline := time.Now().Add(WaitLimit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.T.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// NewSandbox makes a sandbox that is removed when the test ends.
func (l *Lab) NewSandbox(spec atoll.Spec) atoll.Sandbox {
	l.T.Helper()
	sb, err := l.Create(l.Context(), &spec)
	if err != nil {
		l.T.Fatalf("create: %v", err)
	}
	l.T.Cleanup(func() { l.RemoveSandbox(sb) })
	return sb
}

// RemoveSandbox removes a sandbox with its volumes.
func (l *Lab) RemoveSandbox(sb atoll.Sandbox) {
	l.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), WaitLimit)
	defer cancel()
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		l.T.Errorf("remove: %v", err)
	}
}

// Status returns the sandbox's status.
func (l *Lab) Status(sb atoll.Sandbox) atoll.Status {
	l.T.Helper()
	st, err := sb.Status(l.Context())
	if err != nil {
		l.T.Fatalf("status: %v", err)
	}
	return st
}

// AwaitState waits until the sandbox is in that state.
func (l *Lab) AwaitState(sb atoll.Sandbox, want atoll.State) (st atoll.Status) {
	l.T.Helper()
	l.Poll(func() error {
		if st = l.Status(sb); st.State != want {
			return fmt.Errorf("state %s (%s), want %s", st.State, st.Reason, want)
		}
		return nil
	})
	return st
}

// Sh runs a script and returns what it printed, without the last newline. It must succeed.
func (l *Lab) Sh(sb atoll.Sandbox, script string) string {
	l.T.Helper()
	return l.Run(sb, &atoll.Command{Args: []string{"sh", "-c", script}})
}

// Run is Sh for another command.
func (l *Lab) Run(sb atoll.Sandbox, cmd *atoll.Command) string {
	l.T.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := atoll.Output(l.Context(), sb, cmd)
	if err != nil {
		l.T.Fatalf("%q: %v\n%s%s", cmd.Args, err, out, &stderr)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// FailSh runs a script that must fail and returns everything that it printed.
func (l *Lab) FailSh(sb atoll.Sandbox, script string) string {
	l.T.Helper()
	var out bytes.Buffer
	err := atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if _, ok := errors.AsType[*atoll.ExitError](err); !ok {
		l.T.Errorf("%s: %v, want it to fail\n%s", script, err, &out)
	}
	return out.String()
}

// StartCommand starts a command that keeps running.
func (l *Lab) StartCommand(sb atoll.Sandbox, cmd *atoll.Command) atoll.Process {
	l.T.Helper()
	p, err := sb.Exec(l.Context(), cmd)
	l.Must("exec", err)
	return p
}

// RunAsync calls f in the background and returns a channel that gets its result.
func RunAsync(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}
