package providertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A stepFailer fails the nth step that a provider takes while the stepFailer is armed.
type stepFailer struct {
	mu     sync.Mutex
	nth    int // 0: not armed
	names  []string
	failed string
}

// enterStep is the function that the provider calls before each step. It returns an error if the step
// must fail.
func (s *stepFailer) enterStep(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nth == 0 || s.failed != "" {
		return nil
	}
	s.names = append(s.names, name)
	if len(s.names) < s.nth {
		return nil
	}
	s.failed = name
	return atoll.Errorf("step", name, atoll.ErrUnavailable, "this step failed as planned")
}

// runArmed calls f while the stepFailer is armed for step n. It checks that f fails exactly if a step
// failed, and returns f's error.
func (s *stepFailer) runArmed(t *testing.T, what string, n int, f func() error) error {
	t.Helper()
	s.mu.Lock()
	s.nth = n
	s.mu.Unlock()
	err := f()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nth = 0
	switch {
	case err != nil:
		wantKind(t, what, err, atoll.ErrUnavailable)
	case s.failed != "":
		t.Errorf("%s succeeded although its step %q failed", what, s.failed)
	}
	if err != nil && s.failed == "" {
		t.Errorf("%s: %v, although no step failed", what, err)
	}
	return err
}

// failEachStep runs the scenario repeatedly, each time with a new provider, and fails its first step, then
// its second and so on, until no step fails.
func failEachStep(t *testing.T, h *harness, scenario func(t *testing.T, h *harness, s *stepFailer, n int)) {
	const enough = 100
	if err := h.p.Close(); err != nil { // no provider may run during the checks for leaks
		t.Errorf("Close: %v", err)
	}
	h.closed = true
	for n := 1; n <= enough; n++ {
		s := &stepFailer{}
		t.Run(fmt.Sprintf("step %d fails", n), func(t *testing.T) {
			one := &harness{cfg: h.cfg, census: checkLeaks(t, h.cfg), p: h.cfg.steps(t, s.enterStep)}
			t.Cleanup(func() { one.closeAndCheck(t) })
			scenario(t, one, s, n)
			if t.Failed() {
				t.Logf("the steps were %s", strings.Join(s.names, ", "))
			}
		})
		if s.failed != "" {
			continue
		}
		if n == 1 {
			t.Error("the provider never calls step")
		}
		t.Logf("the steps are %s", strings.Join(s.names, ", "))
		return
	}
	t.Errorf("there are more than %d steps", enough)
}

var stepPromises = []promise{
	{"whichever step of a creation fails, nothing is left", []need{needSteps}, func(t *testing.T, h *harness) {
		failEachStep(t, h, func(t *testing.T, h *harness, s *stepFailer, n int) {
			spec := h.demandingSpec()
			h.checkFailedCreate(t, s, n, spec)
			h.runForOutput(t, h.createSandbox(t, spec), programCommand("echo", "works"))
		})
	}},
	{"whichever step of a creation fails, a retained data volume stays", []need{needSteps, needVolumes, needFiles}, func(t *testing.T, h *harness) {
		failEachStep(t, h, func(t *testing.T, h *harness, s *stepFailer, n int) {
			first := h.createSandbox(t, atoll.Spec{Name: "laden"})
			h.writeFile(t, first, "kept", "kept")
			if err := first.Remove(h.newContext(t)); err != nil {
				t.Fatalf("Remove: %v", err)
			}
			spec := h.demandingSpec()
			spec.ID = first.ID()
			h.checkFailedCreate(t, s, n, spec)
			h.checkContent(t, h.createSandbox(t, spec), "kept", "kept")
		})
	}},
	{"whichever step of a start fails, the sandbox keeps its files and can be started again", []need{needSteps, needRestart}, func(t *testing.T, h *harness) {
		failEachStep(t, h, func(t *testing.T, h *harness, s *stepFailer, n int) {
			sb := h.createSandbox(t, h.demandingSpec())
			h.waitForOutput(t, sb, "ready\n")
			var files []string
			if h.keepsWork() {
				files = append(files, "inwork")
			}
			if h.keepsRoot() {
				files = append(files, "/atoll-test-root")
			}
			for _, name := range files {
				if h.runForCode(t, sb, scriptCommand("store", name, "stored")) != 0 {
					t.Fatalf("the process could not write %s", name)
				}
			}
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			if s.runArmed(t, "Start", n, func() error { return sb.Start(h.newContext(t)) }) != nil {
				st := h.getStatus(t, sb)
				if st.Ready || st.State != atoll.StateStopped && (st.State != atoll.StateFailed || st.Reason == "") {
					t.Errorf("the status is %+v, want it stopped, or failed for a reason", st)
				}
				_, err := sb.Exec(h.newContext(t), programCommand("true"))
				wantKind(t, "Exec", err, atoll.ErrStopped)
				var printed strings.Builder
				if p, err := sb.Process(h.newContext(t), atoll.MainProcess); err != nil {
					t.Errorf("Process: %v", err)
				} else if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: &printed}); err != nil || printed.String() != "ready\n" {
					t.Errorf("the main process printed %q, %v", printed.String(), err)
				}
				if err := sb.Start(h.newContext(t)); err != nil {
					t.Fatalf("Start, tried again: %v", err)
				}
			}
			for _, name := range files {
				if got := h.runForOutput(t, sb, programCommand("cat", name)); got != "stored" {
					t.Errorf("%s holds %q", name, got)
				}
			}
		})
	}},
}

// demandingSpec returns a spec with many features that can fail.
func (h *harness) demandingSpec() atoll.Spec {
	spec := atoll.Spec{Name: "laden", Cmd: scriptArgs("ready"), Labels: map[string]string{"a": "b"}, TTL: atoll.Duration(time.Hour)}
	if h.p.Info().Caps.NetworkOn {
		spec.Network.Mode = atoll.NetworkOn
	}
	if h.p.Info().Caps.Volumes {
		spec.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}
		h.volumes = append(h.volumes, "cache")
	}
	return spec
}

// checkFailedCreate fails the nth step of a Create, and checks that the state is the same as before. If
// Create succeeds because it has fewer steps, it removes the sandbox.
func (h *harness) checkFailedCreate(t *testing.T, s *stepFailer, n int, spec atoll.Spec) {
	t.Helper()
	before := h.describeState(t)
	var sb atoll.Sandbox
	err := s.runArmed(t, "Create", n, func() (err error) {
		sb, err = h.p.Create(h.newContext(t), h.completeSpec(spec))
		return err
	})
	if err != nil {
		_, err := atoll.Resolve(h.newContext(t), h.p, "", spec.Name)
		wantKind(t, "Resolve", err, atoll.ErrNotFound)
		if after := h.describeState(t); after != before {
			t.Errorf("after the failed Create there is %s, before there was %s", after, before)
		}
		return
	}
	var opts []atoll.RemoveOption
	if spec.ID == "" {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := sb.Remove(h.newContext(t), opts...); err != nil {
		t.Fatalf("Remove: %v", err)
	}
}

// describeState describes all sandboxes and volumes.
func (h *harness) describeState(t *testing.T) string {
	t.Helper()
	text := fmt.Sprintf("sandboxes %q", h.listIDs(t))
	all, err := atoll.Volumes(h.newContext(t), h.p, "")
	if err != nil && atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Fatalf("Volumes: %v", err)
	}
	for _, v := range all {
		text += fmt.Sprintf(", volume %s/%s (in use: %v)", v.Project, v.Name, v.InUse)
	}
	return text
}
