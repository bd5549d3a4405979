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

// A harness is what one subtest works with: a provider of its own, and the
// list of what to remove from it.
type harness struct {
	cfg    *config
	kin    *census
	p      atoll.Provider
	opened []atoll.Provider // further values over the same backend
	closed bool             // the subtest closed p itself

	volumes []string // of the default project, to remove after the sandboxes
	common  *common  // whose provider p is; nil if it is the subtest's own
	lent    bool     // the sandbox that is common's

	mu   sync.Mutex
	made []string // ids of sandboxes to remove
}

func (h *harness) short() time.Duration { return h.cfg.short() }
func (h *harness) long() time.Duration  { return h.cfg.long() }

// ctx is the context of the whole subtest.
func (h *harness) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), h.long())
	t.Cleanup(cancel)
	return ctx
}

// reopen makes a second provider value, as after a restart.
func (h *harness) reopen(t *testing.T) atoll.Provider {
	t.Helper()
	if h.cfg.reopen == nil {
		t.Fatal("Caps.Survives needs the option Reopen")
	}
	p := h.cfg.reopen(t, h.p)
	h.opened = append(h.opened, p)
	return p
}

// spec completes a Spec with what the options say.
func (h *harness) spec(s atoll.Spec) *atoll.Spec {
	if s.Image == "" && s.Snapshot == "" {
		s.Image = h.cfg.image
	}
	return &s
}

// keep has the sandbox removed at the end of the subtest.
func (h *harness) keep(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made = append(h.made, id)
}

// create makes a sandbox, or fails the test.
func (h *harness) create(t *testing.T, s atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := h.p.Create(h.ctx(t), h.spec(s))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	h.keep(sb.ID())
	h.kin.take()
	return sb
}

// idle makes the plainest of sandboxes, or borrows it.
func (h *harness) idle(t *testing.T) atoll.Sandbox {
	t.Helper()
	if h.common != nil && !h.lent {
		return h.common.sandbox(t, h)
	}
	return h.alone(t)
}

// alone is idle for subtests that look at all that has run in it.
func (h *harness) alone(t *testing.T) atoll.Sandbox {
	t.Helper()
	return h.create(t, atoll.Spec{})
}

// refused checks that a Create fails with one of kinds and leaves nothing.
func (h *harness) refused(t *testing.T, s atoll.Spec, kinds ...atoll.Kind) {
	t.Helper()
	before := h.ids(t)
	sb, err := h.p.Create(h.ctx(t), h.spec(s))
	if err == nil {
		h.keep(sb.ID())
		t.Errorf("Create(%+v) succeeded, want %v", s, kinds)
		return
	}
	wantKind(t, "Create", err, kinds...)
	if after := h.ids(t); len(after) != len(before) {
		t.Errorf("the failed Create left something: List has %d sandboxes, had %d", len(after), len(before))
	}
}

func (h *harness) ids(t *testing.T) []string {
	t.Helper()
	all, err := h.p.List(h.ctx(t), atoll.Filter{})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	var ids []string
	for _, st := range all {
		ids = append(ids, st.ID)
	}
	return ids
}

// start executes cmd, or fails the test.
func (h *harness) start(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) atoll.Process {
	t.Helper()
	p, err := sb.Exec(h.ctx(t), cmd)
	if err != nil {
		t.Fatalf("Exec %s: %v", label(cmd), err)
	}
	return p
}

// wait waits for p's exit, or fails the test.
func (h *harness) wait(t *testing.T, p atoll.Process) atoll.Exit {
	t.Helper()
	exit, err := p.Wait(h.ctx(t))
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return exit
}

// capture runs cmd to its end.
func (h *harness) capture(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) atoll.Result {
	t.Helper()
	res, err := atoll.Capture(h.ctx(t), sb, cmd, 64<<20)
	if err != nil {
		t.Fatalf("%s: %v", label(cmd), err)
	}
	return res
}

// output runs cmd, which must succeed, and returns what it prints, trimmed.
func (h *harness) output(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) string {
	t.Helper()
	res := h.capture(t, sb, cmd)
	if !res.Success() {
		t.Fatalf("%s: %v; stderr %q", label(cmd), res.Exit, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// code runs cmd and returns its exit code.
func (h *harness) code(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) int {
	t.Helper()
	return h.capture(t, sb, cmd).Code
}

// started executes cmd and returns when it has printed its first line.
func (h *harness) started(t *testing.T, sb atoll.Sandbox, cmd *atoll.Command) (atoll.Process, *screen) {
	t.Helper()
	scr := newScreen()
	cmd.Stdout = scr
	p := h.start(t, sb, cmd)
	scr.expect(t, h, "\n")
	return p, scr
}

// status asks for the sandbox's status, or fails the test.
func (h *harness) status(t *testing.T, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(h.ctx(t))
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	return st
}

// becomes waits for a state, or fails the test.
func (h *harness) becomes(t *testing.T, sb atoll.Sandbox, want atoll.State) atoll.Status {
	t.Helper()
	var st atoll.Status
	h.poll(t, h.short(), func() error {
		if st = h.status(t, sb); st.State != want {
			return fmt.Errorf("state is %q (%s), want %q", st.State, st.Reason, want)
		}
		return nil
	})
	return st
}

// poll calls f until it returns nil, and fails the test when that takes
// longer than limit.
func (h *harness) poll(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	if err := eventually(limit, f); err != nil {
		t.Fatalf("after %v: %v", limit, err)
	}
}

// eventually calls f until it returns nil or limit is over, and returns its
// last error.
func eventually(limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// within fails the test unless f returns before limit.
func within(t *testing.T, limit time.Duration, what string, f func()) {
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

// wantKind checks an error's kind, that errors.Is agrees, and that the error
// is one of ours.
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

// checkError checks the form of an error: an *atoll.Error with a kind and an
// op, whose text does not stutter.
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

// wantCtx checks that err is ctx's own error.
func wantCtx(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// label names a command in a failure.
func label(cmd *atoll.Command) string {
	if len(cmd.Args) > 3 && cmd.Args[0] == "sh" {
		w, _, _ := strings.Cut(strings.TrimPrefix(cmd.Args[2], ": "), ";")
		return strings.Join(append([]string{w}, cmd.Args[4:]...), " ")
	}
	return strings.Join(cmd.Args, " ")
}

// A screen collects what a process prints, and lets a test wait for it.
type screen struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced when buf grows
}

func newScreen() *screen { return &screen{changed: make(chan struct{})} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.buf.Write(p)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// expect waits until the screen shows want.
func (s *screen) expect(t *testing.T, h *harness, want string) {
	t.Helper()
	s.until(t, h, fmt.Sprintf("%q", want), func(text string) bool { return strings.Contains(text, want) })
}

// shows waits for so long at most until the screen shows want, and reports
// whether it does.
func (s *screen) shows(want string, limit time.Duration) bool {
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

// until waits until ok is content with what the screen shows.
func (s *screen) until(t *testing.T, h *harness, what string, ok func(text string) bool) {
	t.Helper()
	timeout := time.After(h.short())
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

// pipe returns a stdin that a test can type into, closed at its end.
func pipe(t *testing.T) (io.Reader, *io.PipeWriter) {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close(); r.Close() })
	return r, w
}

// pattern returns n bytes that repeat nowhere near, all values among them.
func pattern(n int) []byte {
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

// differ says where two byte strings differ, or "".
func differ(got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("%d bytes, want %d; first difference at byte %d", len(got), len(want), i)
		}
	}
	return fmt.Sprintf("%d bytes, want %d; one is the beginning of the other", len(got), len(want))
}
