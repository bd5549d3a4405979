//go:build linux

package microvm_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/microvm"
)

// patience bounds how long a test waits for an event that must happen.
var patience = testenv.Scale(2 * time.Minute)

// A lab is a provider for one test, with the steps that its tests are made of. Each step
// fails the test when it does not succeed.
type lab struct {
	*microvm.Provider
	opts microvm.Options
	t    testing.TB
}

// newLab opens a provider that is closed when the test ends; what is left then is an error.
func newLab(t *testing.T, change ...func(microvm.Options) microvm.Options) *lab {
	t.Helper()
	need(t)
	return maker(func(t testing.TB) microvm.Options {
		opts := fresh(t)
		for _, f := range change {
			opts = f(opts)
		}
		return opts
	}).lab(t)
}

// lab is newLab with what fresh returns.
func (fresh maker) lab(t *testing.T) *lab {
	t.Helper()
	opts := fresh(t)
	p := openWith(t, opts)
	t.Cleanup(func() { p.Close() })
	return &lab{p, opts, t}
}

// ctx ends with the test, or when it takes too long.
func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
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
	l.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
			l.t.Errorf("remove: %v", err)
		}
	})
	return sb
}

// becomes waits until the sandbox is in that state.
func (l *lab) becomes(sb atoll.Sandbox, want atoll.State) (st atoll.Status) {
	l.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		st, err := sb.Status(l.ctx())
		if err != nil {
			l.t.Fatalf("status: %v", err)
		}
		if st.State == want {
			return st
		}
		if time.Now().After(end) {
			l.t.Fatalf("state %s (%s), want %s", st.State, st.Reason, want)
		}
	}
}

// sh runs a script and returns what it printed, without the last newline. It must succeed.
func (l *lab) sh(sb atoll.Sandbox, script string) string {
	l.t.Helper()
	var stderr bytes.Buffer
	out, err := atoll.Output(l.ctx(), sb, &atoll.Command{Args: []string{"sh", "-c", script}, Stderr: &stderr})
	if err != nil {
		l.t.Fatalf("%q: %v\n%s%s", script, err, out, &stderr)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// must is for steps that only return an error.
func (l *lab) must(what string, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
}

// supervisorOf returns the process id of a sandbox's supervisor.
func supervisorOf(t testing.TB, p atoll.Provider, sb atoll.Sandbox) int {
	t.Helper()
	who, err := statedir.Dir(optionsOf(p).Dir).Supervisor(sb.ID())
	if err != nil {
		t.Fatalf("supervisor: %v", err)
	}
	return who.PID
}

// machines are the processes of QEMU for a sandbox, by its id.
func machines(t testing.TB, id string) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err == nil && bytes.Contains(line, []byte("\x00atoll-"+id+",")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// machineOf is the one.
func machineOf(t testing.TB, sb atoll.Sandbox) int {
	t.Helper()
	pids := machines(t, sb.ID())
	if len(pids) != 1 {
		t.Fatalf("%d machines: %v", len(pids), pids)
	}
	return pids[0]
}

// wantKind checks the kind of an error, and that it says what it is about.
func wantKind(t testing.TB, what string, err error, want atoll.Kind, says ...string) {
	t.Helper()
	if got := atoll.KindOf(err); got != want {
		t.Errorf("%s: %v (%q), want %q", what, err, got, want)
		return
	}
	for _, s := range says {
		if !strings.Contains(fmt.Sprint(err), s) {
			t.Errorf("%s: %q does not say %q", what, err, s)
		}
	}
}
