package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A harness holds the state of one subtest: its provider, and the resources to remove at the end.
type harness struct {
	cfg      *config
	census   *census
	p        atoll.Provider
	reopened []atoll.Provider // more values over the same backend
	closed   bool             // the subtest has closed p

	volumes    []string       // of the default project, to remove after the sandboxes
	sharedFrom *sharedHarness // owns p; nil if the subtest owns it
	borrowed   bool           // the subtest uses the shared sandbox

	mu      sync.Mutex
	created []string // ids of sandboxes to remove
}

func (h *harness) shortLimit() time.Duration { return h.cfg.shortLimit() }
func (h *harness) longLimit() time.Duration  { return h.cfg.longLimit() }

// newContext returns a context that ends with the subtest, or after longLimit.
func (h *harness) newContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), h.longLimit())
	t.Cleanup(cancel)
	return ctx
}

// reopenProvider opens a second provider value over the same backend, as a restart does.
func (h *harness) reopenProvider(t *testing.T) atoll.Provider {
	t.Helper()
	if h.cfg.reopen == nil {
		t.Fatal("Caps.Survives needs the option Reopen")
	}
	p := h.cfg.reopen(t, h.p)
	h.reopened = append(h.reopened, p)
	return p
}

// completeSpec returns a copy of s with the image of the options.
func (h *harness) completeSpec(s atoll.Spec) *atoll.Spec {
	if s.Image == "" && s.Snapshot == "" {
		s.Image = h.cfg.image
	}
	return &s
}

// removeAtEnd removes the sandbox at the end of the subtest.
func (h *harness) removeAtEnd(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.created = append(h.created, id)
}

// createSandbox creates a sandbox that the subtest removes at its end, or fails the test.
func (h *harness) createSandbox(t *testing.T, s atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := h.p.Create(h.newContext(t), h.completeSpec(s))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	h.removeAtEnd(sb.ID())
	h.census.recordProcesses()
	return sb
}

// plainSandbox returns a running sandbox with default settings. It is the shared one if the group has
// one.
func (h *harness) plainSandbox(t *testing.T) atoll.Sandbox {
	t.Helper()
	if h.sharedFrom != nil && !h.borrowed {
		return h.sharedFrom.lendSandbox(t, h)
	}
	return h.ownSandbox(t)
}

// ownSandbox is like plainSandbox, but never returns the shared sandbox.
func (h *harness) ownSandbox(t *testing.T) atoll.Sandbox {
	t.Helper()
	return h.createSandbox(t, atoll.Spec{})
}

// wantRefused checks that Create fails with one of kinds and leaves no sandbox.
func (h *harness) wantRefused(t *testing.T, s atoll.Spec, kinds ...atoll.Kind) {
	t.Helper()
	before := h.listIDs(t)
	sb, err := h.p.Create(h.newContext(t), h.completeSpec(s))
	if err == nil {
		h.removeAtEnd(sb.ID())
		t.Errorf("Create(%+v) succeeded, want %v", s, kinds)
		return
	}
	wantKind(t, "Create", err, kinds...)
	if after := h.listIDs(t); len(after) != len(before) {
		t.Errorf("the failed Create left a sandbox: List has %d sandboxes, had %d", len(after), len(before))
	}
}

// listIDs returns the ids of all sandboxes.
func (h *harness) listIDs(t *testing.T) []string {
	t.Helper()
	all, err := h.p.List(h.newContext(t), atoll.Filter{})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	var ids []string
	for _, st := range all {
		ids = append(ids, st.ID)
	}
	return ids
}

// startProcess starts cmd, or fails the test.
func (h *harness) startProcess(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) atoll.Process {
	t.Helper()
	p, err := sb.Exec(h.newContext(t), cmd)
	if err != nil {
		t.Fatalf("Exec %s: %v", describeCommand(cmd), err)
	}
	return p
}

// waitExit waits until p has ended, or fails the test.
func (h *harness) waitExit(t *testing.T, p atoll.Process) atoll.Exit {
	t.Helper()
	exit, err := p.Wait(h.newContext(t))
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return exit
}

// runCommand runs cmd and returns its result, or fails the test.
func (h *harness) runCommand(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) atoll.Result {
	t.Helper()
	res, err := atoll.Capture(h.newContext(t), sb, cmd, 64<<20)
	if err != nil {
		t.Fatalf("%s: %v", describeCommand(cmd), err)
	}
	return res
}

// runForOutput runs cmd and returns its stdout without surrounding space. It fails the test unless cmd
// succeeds.
func (h *harness) runForOutput(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) string {
	t.Helper()
	res := h.runCommand(t, sb, cmd)
	if !res.Success() {
		t.Fatalf("%s: %v; stderr %q", describeCommand(cmd), res.Exit, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// runForCode runs cmd and returns its exit code.
func (h *harness) runForCode(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) int {
	t.Helper()
	return h.runCommand(t, sb, cmd).Code
}

// startReady starts cmd and returns when it has printed its first line.
func (h *harness) startReady(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) (atoll.Process, *screen) {
	t.Helper()
	scr := newScreen()
	cmd.Stdout = scr
	p := h.startProcess(t, sb, cmd)
	scr.waitForText(t, h, "\n")
	return p, scr
}

// getStatus returns the sandbox's status, or fails the test.
func (h *harness) getStatus(t *testing.T, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(h.newContext(t))
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	return st
}

// waitForState waits until the sandbox has the state, or fails the test.
func (h *harness) waitForState(t *testing.T, sb atoll.Sandbox, want atoll.State) atoll.Status {
	t.Helper()
	var st atoll.Status
	h.waitUntil(t, h.shortLimit(), func() error {
		if st = h.getStatus(t, sb); st.State != want {
			return fmt.Errorf("state is %q (%s), want %q", st.State, st.Reason, want)
		}
		return nil
	})
	return st
}

// waitUntil calls f until it returns nil. It fails the test after limit.
func (h *harness) waitUntil(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	if err := retryFor(limit, f); err != nil {
		t.Fatalf("after %v: %v", limit, err)
	}
}

// retryFor calls f until it returns nil or limit has passed, and returns the last error.
func retryFor(limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// runWithin calls f, and fails the test unless it returns within limit.
func runWithin(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s took longer than %v", what, limit)
	}
}

// wantKind checks that err has one of kinds, that errors.Is agrees, and that err is an *atoll.Error.
func wantKind(t *testing.T, what string, err error, kinds ...atoll.Kind) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want kind %v", what, kinds)
		return
	}
	got := atoll.KindOf(err)
	for _, k := range kinds {
		if got == k || errors.Is(err, k) {
			checkError(t, what, err)
			return
		}
	}
	t.Errorf("%s: %v (kind %q), want kind %v", what, err, got, kinds)
}

// checkError checks that err is an *atoll.Error with a kind and an op, and that its text has its prefix
// only once.
func checkError(t *testing.T, what string, err error) {
	t.Helper()
	var e *atoll.Error
	if !errors.As(err, &e) {
		t.Errorf("%s: error %q is a %T, want an *atoll.Error", what, err, err)
		return
	}
	if e.Op == "" || e.Kind == "" {
		t.Errorf("%s: error %q has op %q and kind %q, want both", what, err, e.Op, e.Kind)
	}
	if prefix := e.Op + " " + e.ID + ": "; strings.Count(err.Error(), prefix) > 1 {
		t.Errorf("%s: error %q was wrapped twice", what, err)
	}
}

// wantCtx checks that err matches the context's error want.
func wantCtx(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// describeCommand returns a short name of a command for messages.
func describeCommand(cmd *atoll.Command) string {
	if len(cmd.Args) > 3 && cmd.Args[0] == "sh" {
		w, _, _ := strings.Cut(strings.TrimPrefix(cmd.Args[2], ": "), ";")
		return strings.Join(append([]string{w}, cmd.Args[4:]...), " ")
	}
	return strings.Join(cmd.Args, " ")
}

// A screen is a writer that collects the output of a process. Tests can wait for text in it.
type screen struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced when buf grows
}

// newScreen returns an empty screen.
func newScreen() *screen { return &screen{changed: make(chan struct{})} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.buf.Write(p)
}

// readText returns the output so far.
func (s *screen) readText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// waitForText waits until the output contains want.
func (s *screen) waitForText(t *testing.T, h *harness, want string) {
	t.Helper()
	s.waitUntil(t, h, fmt.Sprintf("%q", want), func(text string) bool { return strings.Contains(text, want) })
}

// showsWithin reports whether the output contains want within limit.
func (s *screen) showsWithin(want string, limit time.Duration) bool {
	timeout := time.After(limit)
	for {
		s.mu.Lock()
		text, changed := s.buf.String(), s.changed
		s.mu.Unlock()
		if strings.Contains(text, want) {
			return true
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		}
	}
}

// waitUntil waits until ok returns true for the output. what names the expected text in a failure.
func (s *screen) waitUntil(t *testing.T, h *harness, what string, ok func(text string) bool) {
	t.Helper()
	timeout := time.After(h.shortLimit())
	for {
		s.mu.Lock()
		text, changed := s.buf.String(), s.changed
		s.mu.Unlock()
		if ok(text) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("the output has no %s, only %q", what, text)
		}
	}
}

// newPipe returns a stdin and its writer, for tests that type. The end of the test closes both.
func newPipe(t *testing.T) (io.Reader, *io.PipeWriter) {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close(); r.Close() })
	return r, w
}

// patternBytes returns n pseudo-random bytes, the same at each call.
func patternBytes(n int) []byte {
	b := make([]byte, n)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

// describeDiff describes the first difference of two byte slices. It returns "" if they are equal.
func describeDiff(got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("%d bytes, want %d; first difference at byte %d", len(got), len(want), i)
		}
	}
	return fmt.Sprintf("%d bytes, want %d; one is a prefix of the other", len(got), len(want))
}
