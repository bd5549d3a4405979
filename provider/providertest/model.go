//lint:file-ignore ST1008 an operation returns the provider's error, then the expected kinds: the error is a result, not a failure

package providertest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// FuzzModel turns bytes into operations on a few sandboxes, and runs them on the provider and on a
// small model. It compares the results after each operation.
func FuzzModel(f *testing.F, open func(t *testing.T) atoll.Provider, opts ...Option) {
	for _, seed := range []string{
		"\x00\x00\x05\x00\x03\x00",                         // create, exec, remove
		"\x00\x10\x05\x00\x01\x00\x06\x00\x02\x00\x07\x00", // created, started, written, stopped
		"\x00\x00\x06\x00\x03\x00\x00\x00\x07\x00",         // the volume is retained
		"\x00\x00\x06\x00\x04\x00\x00\x00\x07\x00",         // the volume is removed
		"\x00\x01\x08\x01\x05\x01\x01\x01\x09\x01\x08\x01\x03\x01",
		"\x00\x02\x00\x02\x03\x02\x03\x02\x02\x02\x01\x02",
	} {
		f.Add([]byte(seed))
	}
	cfg := newConfig(opts)
	f.Fuzz(func(t *testing.T, data []byte) {
		h := &harness{cfg: cfg, census: checkLeaks(t, cfg), p: open(t)}
		t.Cleanup(func() { h.closeAndCheck(t) })
		m := &model{h: h, caps: h.p.Info().Caps}
		for i := range m.slots {
			m.slots[i].id = atoll.NewID()
		}
		for i := 0; i+1 < len(data) && i < 2*40; i += 2 {
			m.runVerb(t, data[i], data[i+1])
		}
		m.cleanUp(t)
	})
}

// A model predicts the state of the provider.
type model struct {
	h     *harness
	caps  atoll.Caps
	slots [3]slot
	log   []string
}

// A slot is one sandbox of the model.
type slot struct {
	id    string
	sb    atoll.Sandbox // the latest handle; nil before the first Create
	state atoll.State   // "" if there is no sandbox
	file  string        // the content of /work/f; "" if it does not exist
}

// isRunning reports whether the sandbox should run.
func (s *slot) isRunning() bool { return s.state == atoll.StateRunning }

// runVerb runs one operation and checks its error and the states of all sandboxes.
func (m *model) runVerb(t *testing.T, verb, arg byte) {
	t.Helper()
	verbs := []struct {
		name string
		do   func(t *testing.T, s *slot, arg byte) (got error, want []atoll.Kind)
	}{
		{"create", m.createSandbox}, {"start", m.startSandbox}, {"stop", m.stopSandbox}, {"remove", m.removeSandbox}, {"remove with volumes", m.removeWithVolumes},
		{"exec", m.runEcho}, {"store", m.storeFile}, {"read", m.readFile}, {"pause", m.pauseSandbox}, {"resume", m.resumeSandbox},
	}
	v, s := verbs[int(verb)%len(verbs)], &m.slots[int(arg)%len(m.slots)]
	m.log = append(m.log, fmt.Sprintf("%s %d (%s)", v.name, int(arg)%len(m.slots), s.state))
	if s.sb == nil && v.name != "create" {
		return
	}
	got, want := v.do(t, s, arg)
	switch {
	case want == nil && got != nil:
		t.Errorf("%v: the last: %v, want no error", m.log, got)
	case want != nil && !slices.Contains(want, atoll.KindOf(got)):
		t.Errorf("%v: the last: %v, want %v", m.log, got, want)
	}
	m.compareStates(t)
	if t.Failed() {
		t.FailNow()
	}
}

// createSandbox, like the operations below, returns the provider's error and the kinds of errors that
// the model expects; nil stands for no error.
func (m *model) createSandbox(t *testing.T, s *slot, arg byte) (error, []atoll.Kind) {
	spec := m.h.completeSpec(atoll.Spec{ID: s.id, NoStart: arg&0x10 != 0})
	sb, err := m.h.p.Create(m.h.newContext(t), spec)
	if s.state != "" {
		return err, []atoll.Kind{atoll.ErrAlreadyExists}
	}
	if err == nil {
		s.sb, s.state = sb, atoll.StateRunning
		if spec.NoStart {
			s.state = atoll.StateCreated
		}
	}
	return err, nil
}

func (m *model) startSandbox(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	err := s.sb.Start(m.h.newContext(t))
	switch {
	case s.state == "":
		return err, []atoll.Kind{atoll.ErrNotFound}
	case s.state == atoll.StatePaused:
		return err, []atoll.Kind{atoll.ErrConflict}
	case s.state == atoll.StateStopped && !m.caps.Restart:
		return err, []atoll.Kind{atoll.ErrUnsupported}
	}
	s.state = atoll.StateRunning
	return err, nil
}

func (m *model) stopSandbox(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	err := s.sb.Stop(m.h.newContext(t), 0)
	switch s.state {
	case "":
		return err, []atoll.Kind{atoll.ErrNotFound}
	case atoll.StateRunning, atoll.StatePaused:
		s.state = atoll.StateStopped
	}
	return err, nil
}

func (m *model) removeSandbox(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	err := s.sb.Remove(m.h.newContext(t))
	if s.state = ""; !m.caps.Volumes {
		s.file = ""
	}
	return err, nil
}

func (m *model) removeWithVolumes(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	err := s.sb.Remove(m.h.newContext(t), atoll.RemoveVolumes())
	if s.state != "" { // a second Remove does nothing, and the volume stays
		s.state, s.file = "", ""
	}
	return err, nil
}

// refusalKinds returns the errors that Exec may return in a sandbox that does not run.
func (s *slot) refusalKinds() []atoll.Kind {
	switch s.state {
	case "":
		return []atoll.Kind{atoll.ErrNotFound}
	case atoll.StatePaused:
		return []atoll.Kind{atoll.ErrStopped, atoll.ErrConflict}
	}
	return []atoll.Kind{atoll.ErrStopped}
}

func (m *model) runEcho(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	out, err := atoll.Output(m.h.newContext(t), s.sb, programCommand("echo", "hello"))
	if !s.isRunning() {
		return err, s.refusalKinds()
	}
	if string(out) != "hello\n" {
		t.Errorf("echo printed %q", out)
	}
	return err, nil
}

func (m *model) storeFile(t *testing.T, s *slot, arg byte) (error, []atoll.Kind) {
	text := fmt.Sprint(arg)
	err := atoll.Run(m.h.newContext(t), s.sb, scriptCommand("store", "f", text))
	if !s.isRunning() {
		return err, s.refusalKinds()
	}
	s.file = text + "\n"
	return err, nil
}

func (m *model) readFile(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	res, err := atoll.Capture(m.h.newContext(t), s.sb, programCommand("cat", "f"), 0)
	if !s.isRunning() {
		return err, s.refusalKinds()
	}
	if string(res.Stdout) != s.file || res.Success() != (s.file != "") {
		t.Errorf("%v: the file holds %q, exit %v; want %q", m.log, res.Stdout, res.Exit, s.file)
	}
	return err, nil
}

func (m *model) pauseSandbox(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	return m.setPaused(s, atoll.Pause(m.h.newContext(t), s.sb), atoll.StatePaused)
}

func (m *model) resumeSandbox(t *testing.T, s *slot, _ byte) (error, []atoll.Kind) {
	return m.setPaused(s, atoll.Resume(m.h.newContext(t), s.sb), atoll.StateRunning)
}

// setPaused updates the model after Pause or Resume.
func (m *model) setPaused(s *slot, err error, to atoll.State) (error, []atoll.Kind) {
	switch {
	case !m.caps.Pause:
		return err, []atoll.Kind{atoll.ErrUnsupported, atoll.ErrNotFound}
	case s.isRunning() || s.state == atoll.StatePaused:
		s.state = to
		return err, nil
	}
	return err, s.refusalKinds()
}

// compareStates compares the states in List with those of the model.
func (m *model) compareStates(t *testing.T) {
	t.Helper()
	all, err := m.h.p.List(m.h.newContext(t), atoll.Filter{})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for i := range m.slots {
		s := &m.slots[i]
		at := slices.IndexFunc(all, func(st atoll.Status) bool { return st.ID == s.id })
		if at < 0 {
			if s.state != "" {
				t.Errorf("%v: List lacks %d, want it %s", m.log, i, s.state)
			}
			continue
		}
		got := all[at].State
		if s.state == atoll.StateCreated && got == atoll.StateStopped {
			s.state = got // Stop may change created to stopped
		}
		if got != s.state {
			t.Errorf("%v: %d is %q, want %q", m.log, i, got, s.state)
		}
	}
}

// cleanUp removes all sandboxes, and the retained volumes.
func (m *model) cleanUp(t *testing.T) {
	t.Helper()
	for i := range m.slots {
		s := &m.slots[i]
		if s.state == "" && s.file == "" && !m.caps.Volumes || s.sb == nil {
			continue
		}
		if s.state != "" {
			if err := s.sb.Remove(m.h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		} else {
			m.h.removeVolume(t, atoll.DefaultProject, "data-"+s.id)
		}
	}
}
