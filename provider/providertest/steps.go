package providertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A stepper lets the nth step fail that a provider makes after it was armed.
type stepper struct {
	mu     sync.Mutex
	nth    int // 0: not armed
	names  []string
	failed string
}

// step is what a provider calls.
func (s *stepper) step(name string) error {
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

// during calls f while the stepper is armed, and checks that a step that failed
// is told. It returns f's error.
func (s *stepper) during(t *testing.T, what string, n int, f func() error) error {
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

// eachStep runs the scenario with providers of their own, whose first step
// fails, then the second and so on, until none does.
func eachStep(t *testing.T, h *harness, scenario func(t *testing.T, h *harness, s *stepper, n int)) {
	const enough = 100
	if err := h.p.Close(); err != nil { // nothing else may run beside the look for leaks
		t.Errorf("Close: %v", err)
	}
	h.closed = true
	for n := 1; n <= enough; n++ {
		s := &stepper{}
		t.Run(fmt.Sprintf("step %d fails", n), func(t *testing.T) {
			one := &harness{cfg: h.cfg, kin: checkLeaks(t, h.cfg), p: h.cfg.steps(t, s.step)}
			t.Cleanup(func() { one.close(t) })
			scenario(t, one, s, n)
			if t.Failed() {
				t.Logf("the steps were %s", strings.Join(s.names, ", "))
			}
		})
		if s.failed != "" {
			continue
		}
		if n == 1 {
			t.Error("the provider calls step before nothing")
		}
		t.Logf("the steps are %s", strings.Join(s.names, ", "))
		return
	}
	t.Errorf("there are more than %d steps", enough)
}

var steps = []promise{
	{"whichever step of a creation fails, nothing is left", []need{needSteps}, func(t *testing.T, h *harness) {
		eachStep(t, h, func(t *testing.T, h *harness, s *stepper, n int) {
			spec := h.laden()
			h.failedCreate(t, s, n, spec)
			h.output(t, h.create(t, spec), program("echo", "works"))
		})
	}},
	{"whichever step of a creation fails, the data volume that was kept stays", []need{needSteps, needVolumes, needFiles}, func(t *testing.T, h *harness) {
		eachStep(t, h, func(t *testing.T, h *harness, s *stepper, n int) {
			first := h.create(t, atoll.Spec{Name: "laden"})
			h.write(t, first, "kept", "kept")
			if err := first.Remove(h.ctx(t)); err != nil {
				t.Fatalf("Remove: %v", err)
			}
			spec := h.laden()
			spec.ID = first.ID()
			h.failedCreate(t, s, n, spec)
			h.holds(t, h.create(t, spec), "kept", "kept")
		})
	}},
	{"whichever step of a start fails, the sandbox is what it was and can be started again", []need{needSteps, needRestart}, func(t *testing.T, h *harness) {
		eachStep(t, h, func(t *testing.T, h *harness, s *stepper, n int) {
			sb := h.create(t, h.laden())
			h.printed(t, sb, "ready\n")
			var files []string
			if h.keepsWork() {
				files = append(files, "inwork")
			}
			if h.keepsRoot() {
				files = append(files, "/atoll-test-root")
			}
			for _, name := range files {
				if h.code(t, sb, word("store", name, "stored")) != 0 {
					t.Fatalf("the process could not write %s", name)
				}
			}
			if err := sb.Stop(h.ctx(t), 0); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			if s.during(t, "Start", n, func() error { return sb.Start(h.ctx(t)) }) != nil {
				st := h.status(t, sb)
				if st.Ready || st.State != atoll.StateStopped && (st.State != atoll.StateFailed || st.Reason == "") {
					t.Errorf("the status is %+v, want it stopped, or failed for a reason", st)
				}
				_, err := sb.Exec(h.ctx(t), program("true"))
				wantKind(t, "Exec", err, atoll.ErrStopped)
				var said strings.Builder
				if p, err := sb.Process(h.ctx(t), atoll.MainProcess); err != nil {
					t.Errorf("Process: %v", err)
				} else if err := p.Attach(h.ctx(t), &atoll.Attachment{Stdout: &said}); err != nil || said.String() != "ready\n" {
					t.Errorf("its main process had printed %q, %v", said.String(), err)
				}
				if err := sb.Start(h.ctx(t)); err != nil {
					t.Fatalf("Start, tried again: %v", err)
				}
			}
			for _, name := range files {
				if got := h.output(t, sb, program("cat", name)); got != "stored" {
					t.Errorf("%s holds %q", name, got)
				}
			}
		})
	}},
}

// laden is a spec that asks for much of what can fail.
func (h *harness) laden() atoll.Spec {
	spec := atoll.Spec{Name: "laden", Cmd: wordArgs("ready"), Labels: map[string]string{"a": "b"}, TTL: atoll.Duration(time.Hour)}
	if h.p.Info().Caps.NetworkOn {
		spec.Network.Mode = atoll.NetworkOn
	}
	if h.p.Info().Caps.Volumes {
		spec.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/cache"}}
		h.volumes = append(h.volumes, "cache")
	}
	return spec
}

// failedCreate has the nth step of a Create fail, after which everything is as
// it was before.
func (h *harness) failedCreate(t *testing.T, s *stepper, n int, spec atoll.Spec) {
	t.Helper()
	before := h.state(t)
	var sb atoll.Sandbox
	err := s.during(t, "Create", n, func() (err error) {
		sb, err = h.p.Create(h.ctx(t), h.spec(spec))
		return err
	})
	if err != nil {
		_, err := atoll.Resolve(h.ctx(t), h.p, "", spec.Name)
		wantKind(t, "Resolve", err, atoll.ErrNotFound)
		if after := h.state(t); after != before {
			t.Errorf("Create left something: there is %s, there was %s", after, before)
		}
		return
	}
	var opts []atoll.RemoveOption
	if spec.ID == "" {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := sb.Remove(h.ctx(t), opts...); err != nil {
		t.Fatalf("Remove: %v", err)
	}
}

// state says which sandboxes and volumes there are.
func (h *harness) state(t *testing.T) string {
	t.Helper()
	text := fmt.Sprintf("sandboxes %q", h.ids(t))
	all, err := atoll.Volumes(h.ctx(t), h.p, "")
	if err != nil && atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Fatalf("Volumes: %v", err)
	}
	for _, v := range all {
		text += fmt.Sprintf(", volume %s/%s (in use: %v)", v.Project, v.Name, v.InUse)
	}
	return text
}
