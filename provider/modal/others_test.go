//go:build linux

package modal_test

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// elsewhereToo returns the handle of the sandbox in another program.
func elsewhereToo(t *testing.T, p atoll.Provider, sb atoll.Sandbox) atoll.Sandbox {
	t.Helper()
	other := reopen(t, p)
	t.Cleanup(func() { other.Close() })
	there, err := other.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// A sandbox that is being stopped counts as stopped by a call for every program, even one that
// sees the end before the stop is recorded.
func TestStopIsSeenByOthers(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "trap 'exit 3' TERM; echo >/tmp/ready; while :; do sleep 0.1; done"}})
	becomes(t, "the trap is set", time.Minute, func() bool {
		_, err := atoll.ReadFile(t.Context(), sb, "/tmp/ready")
		return err == nil
	})
	there := elsewhereToo(t, p, sb)
	seen := make(chan atoll.Status, 1)
	var first atomic.Bool
	theLab.server.Intercept(func(method string) error {
		if method == "SandboxGetLogs" && first.CompareAndSwap(false, true) { // the instance has ended
			st, err := there.Status(t.Context())
			if err != nil {
				t.Error(err)
			}
			seen <- st
		}
		return nil
	})
	defer theLab.server.Intercept(nil)
	if err := sb.Stop(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if st := <-seen; st.State != atoll.StateStopped || st.Reason != "" || st.Exit == nil || st.Exit.Code != 3 {
		t.Errorf("another program sees it %s because of %q, with %+v", st.State, st.Reason, st.Exit)
	}
}

// If nothing listens on a port, Dial does not wait for the end of a sandbox whose guest
// answers.
func TestNobodyListens(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	becomes(t, "Modal is not asked for its end", time.Minute, func() bool { // except by a sweep
		before := theLab.server.Calls("SandboxWait")
		conn, err := atoll.Dial(t.Context(), sb, 1)
		if err == nil {
			conn.Close()
		}
		if atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "nothing listens on port 1") {
			t.Fatalf("Dial: %v", err)
		}
		return theLab.server.Calls("SandboxWait") == before
	})
}

// Reading the files of a stopped sandbox does not disturb another program that writes them.
func TestCaretakerIsShared(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{NoStart: true})
	there := elsewhereToo(t, p, sb)
	before := theLab.server.Calls("SandboxCreate")
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := atoll.Files(sb).Write(t.Context(), "file", r, atoll.WriteOptions{})
		r.CloseWithError(err)
		written <- err
	}()
	if _, err := io.WriteString(w, "half and "); err != nil {
		t.Fatal(err)
	}
	if _, err := atoll.Files(there).List(t.Context(), ".", false); err != nil {
		t.Errorf("List: %v", err)
	}
	if _, err := io.WriteString(w, "half"); err != nil {
		t.Error(err)
	}
	w.Close()
	if err := <-written; err != nil {
		t.Errorf("Write: %v", err)
	}
	if text, err := atoll.ReadFile(t.Context(), there, "file"); err != nil || string(text) != "half and half" {
		t.Errorf("it has %q, %v", text, err)
	}
	if names := lives(t, p); len(names) != 1 {
		t.Errorf("Modal has %q after %d creations, want one caretaker", names, theLab.server.Calls("SandboxCreate")-before)
	}
}

// A caretaker that is created while another program starts the sandbox ends again, and the call
// is done inside the sandbox.
func TestCaretakerIsLate(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	says(t, sb, "echo work > /work/file")
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	there := elsewhereToo(t, p, sb)
	var first atomic.Bool
	theLab.server.Intercept(func(method string) error {
		if method == "SandboxCreate" && first.CompareAndSwap(false, true) { // the caretaker is being created
			if err := there.Start(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	defer theLab.server.Intercept(nil)
	if text, err := atoll.ReadFile(t.Context(), sb, "file"); err != nil || string(text) != "work\n" {
		t.Errorf("it has %q, %v", text, err)
	}
	if names := lives(t, p); len(names) != 1 || strings.Contains(names[0], "-files-") {
		t.Errorf("Modal has %q, want the sandbox alone", names)
	}
	says(t, there, "true")
}
