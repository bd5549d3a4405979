package providertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

var sessionPromises = []promise{
	{"concurrent opens of a session create one sandbox and share it", []need{needSessions}, func(t *testing.T, h *harness) {
		const openers = 10
		opened := make([]session.OpenResult, openers)
		var all sync.WaitGroup
		for i := range openers {
			all.Go(func() {
				o, err := session.Open(h.newContext(t), h.p, h.sessionSpec("many"))
				if err != nil {
					t.Errorf("OpenSession: %v", err)
				}
				opened[i] = o
			})
		}
		all.Wait()
		h.removeAtEnd(opened[0].Sandbox)
		h.census.recordProcesses()
		made := 0
		for _, o := range opened {
			if o.Opening == session.OpeningMade {
				made++
			} else if o.Opening != session.OpeningFound || o.Note != "" {
				t.Errorf("a session was %s (%q)", o.Opening, o.Note)
			}
			if o.Sandbox != opened[0].Sandbox || o.Key != "workflow_many_sandbox" || o.State != session.StateOpen {
				t.Errorf("one open returned %+v, another %+v", o, opened[0])
			}
		}
		if ids := h.listIDs(t); made != 1 || len(ids) != 1 {
			t.Errorf("%d opens created a sandbox, List has %d; want one", made, len(ids))
		}
	}},
	{"a session's sandbox matches its spec, runs, and is retained", []need{needSessions}, func(t *testing.T, h *harness) {
		spec := h.sessionSpec("one")
		spec.Sandbox.Env, spec.Sandbox.Labels = []string{"COLOUR=blue"}, map[string]string{"team": "a"}
		spec.Workflow, spec.IdleTimeout, spec.MaxLifetime = "parent", atoll.Duration(20*time.Minute), atoll.Duration(3*time.Hour)
		o, sb := h.openSession(t, spec)
		st := h.getStatus(t, sb)
		if st.State != atoll.StateRunning || st.Spec.Labels["team"] != "a" || st.Spec.Project != atoll.DefaultProject {
			t.Errorf("the sandbox is %+v", st)
		}
		if left := time.Until(st.Expires); left > 3*time.Hour || left < 3*time.Hour-h.longLimit() || !o.Expires.Equal(st.Expires) {
			t.Errorf("the sandbox expires %s, the session %s; want in three hours", st.Expires, o.Expires)
		}
		if o.IdleTimeout != spec.IdleTimeout {
			t.Errorf("the idle timeout is %s", o.IdleTimeout)
		}
		if got := h.runForOutput(t, sb, programCommand("env")); !strings.Contains(got, "COLOUR=blue") {
			t.Errorf("the environment is %q", got)
		}
		spec.Sandbox.Env = nil
		again, _ := h.openSession(t, spec)
		if again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound || !slices.Equal(again.Spec.Env, []string{"COLOUR=blue"}) {
			t.Errorf("the second OpenSession returned %+v", again)
		}
		all := h.listSessions(t, "")
		if len(all) != 1 || all[0].Key != o.Key || all[0].Sandbox != o.Sandbox || all[0].Workflow != "parent" || all[0].Created.IsZero() ||
			all[0].Opened.Before(all[0].Created) {
			t.Errorf("Sessions = %+v, want %+v", all, o.Session)
		}
		if all := h.listSessions(t, "other"); len(all) > 0 {
			t.Errorf("Sessions of another project = %+v, want none", all)
		}
	}},
	{"CloseSession removes the sandbox with its files, and the next one is new", []need{needSessions}, func(t *testing.T, h *harness) {
		o, sb := h.openSession(t, h.sessionSpec("one"))
		if err := session.Close(h.newContext(t), h.p, "", o.Key); err != nil {
			t.Fatalf("CloseSession: %v", err)
		}
		h.waitUntilGone(t, sb, 0)
		wantKind(t, "CloseSession again", session.Close(h.newContext(t), h.p, atoll.DefaultProject, o.Key), atoll.ErrNotExist)
		if all := h.listSessions(t, ""); len(all) > 0 {
			t.Errorf("Sessions = %+v, want none", all)
		}
		if again, _ := h.openSession(t, h.sessionSpec("one")); again.Sandbox == o.Sandbox || again.Opening != session.OpeningMade || again.Note != "" {
			t.Errorf("the second OpenSession returned %+v", again)
		}
	}},
	{"OpenSession starts a stopped sandbox again with its files, and reports it", []need{needSessions, needRestart, needFiles}, func(t *testing.T, h *harness) {
		o, sb := h.openSession(t, h.sessionSpec("one"))
		h.writeFile(t, sb, "kept", "kept")
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		again, sb := h.openSession(t, h.sessionSpec("one"))
		if again.Sandbox != o.Sandbox || again.Opening != session.OpeningRestarted || again.Note == "" {
			t.Errorf("the second OpenSession returned %+v", again)
		}
		if h.keepsWork() {
			h.checkContent(t, sb, "kept", "kept")
		}
	}},
	{"OpenSession resumes a paused sandbox", []need{needSessions, needPause}, func(t *testing.T, h *harness) {
		o, sb := h.openSession(t, h.sessionSpec("one"))
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		again, sb := h.openSession(t, h.sessionSpec("one"))
		if again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound {
			t.Errorf("the second OpenSession returned %+v", again)
		}
		h.runForOutput(t, sb, programCommand("echo", "runs"))
	}},
	{"OpenSession replaces a removed sandbox, and reports it", []need{needSessions}, func(t *testing.T, h *harness) {
		o, sb := h.openSession(t, h.sessionSpec("one"))
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		again, sb := h.openSession(t, h.sessionSpec("one"))
		if again.Sandbox == o.Sandbox || again.Opening != session.OpeningReplaced || again.Note == "" {
			t.Errorf("the second OpenSession returned %+v", again)
		}
		h.runForOutput(t, sb, programCommand("echo", "runs"))
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if all := h.listSessions(t, ""); len(all) > 0 {
			t.Errorf("a session without a sandbox is listed: %+v", all)
		}
	}},
	{"OpenSession leaves no session if it cannot create the sandbox", []need{needSessions}, func(t *testing.T, h *harness) {
		spec := h.sessionSpec("one")
		spec.Sandbox.Mounts = []atoll.Mount{{Type: atoll.MountBind, Source: "/none/none", Target: "/x"}}
		if o, err := session.Open(h.newContext(t), h.p, spec); err == nil {
			h.removeAtEnd(o.Sandbox)
			t.Error("OpenSession succeeded with an impossible mount")
		}
		if all := h.listSessions(t, ""); len(all) > 0 {
			t.Errorf("Sessions = %+v, want none", all)
		}
		h.openSession(t, h.sessionSpec("one"))
	}},
	{"EndScope ends the sessions of a run, and no others", []need{needSessions}, func(t *testing.T, h *harness) {
		agent := h.sessionSpec("a1")
		agent.Scope.Kind, agent.Workflow = session.ScopeAgent, "w1"
		other := h.sessionSpec("w1")
		other.Scope.Kind = session.ScopeConversation
		for _, spec := range []*session.Spec{h.sessionSpec("w1"), h.sessionSpec("w2"), agent, other} {
			h.openSession(t, spec)
		}
		closed, err := session.EndScope(h.newContext(t), h.p, "", session.Scope{Kind: session.ScopeWorkflow, ID: "w1"})
		slices.Sort(closed)
		if want := []string{"agent_a1_sandbox", "workflow_w1_sandbox"}; err != nil || !slices.Equal(closed, want) {
			t.Errorf("EndScope = %q, %v; want %q", closed, err, want)
		}
		if again, err := session.EndScope(h.newContext(t), h.p, "", session.Scope{Kind: session.ScopeWorkflow, ID: "w1"}); err != nil || len(again) > 0 {
			t.Errorf("EndScope again = %q, %v", again, err)
		}
		if all := h.listSessions(t, ""); len(all) != 2 || len(h.listIDs(t)) != 2 {
			t.Errorf("the sessions that are left are %+v", all)
		}
	}},
	{"an unused session ends, and a used one does not", []need{needSessions}, func(t *testing.T, h *harness) {
		lonely, busy := h.sessionSpec("lonely"), h.sessionSpec("busy")
		idle := h.idleTimeout()
		lonely.IdleTimeout, busy.IdleTimeout = atoll.Duration(idle), atoll.Duration(idle)
		alone, _ := h.openSession(t, lonely)
		o, sb := h.openSession(t, busy)
		h.startProcess(t, sb, scriptCommand("ready"))
		h.waitUntil(t, 3*h.shortLimit(), func() error {
			if _, err := h.p.Get(h.newContext(t), alone.Sandbox); atoll.KindOf(err) != atoll.ErrNotFound {
				return fmt.Errorf("Get: %v, want not found", err)
			}
			return nil
		})
		time.Sleep(idle) // the same time again for the busy session
		if again, _ := h.openSession(t, busy); again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound {
			t.Errorf("while a command ran, the session was %s: %s", again.Opening, again.Note)
		}
		if all := h.listSessions(t, ""); len(all) != 1 || all[0].Key != o.Key {
			t.Errorf("Sessions = %+v, want the busy one", all)
		}
	}},
	{"opening a session counts as use of its sandbox", []need{needSessions}, func(t *testing.T, h *harness) {
		spec := h.sessionSpec("one")
		idle := h.idleTimeout()
		spec.IdleTimeout = atoll.Duration(idle)
		last := time.Now()
		o, _ := h.openSession(t, spec)
		for end := time.Now().Add(2 * idle); time.Now().Before(end); time.Sleep(idle / 4) {
			begin := time.Now()
			again, _ := h.openSession(t, spec)
			if used := again.Sandbox == o.Sandbox && again.Opening == session.OpeningFound; !used && time.Since(last) < idle { // else this machine was too busy
				t.Fatalf("opened again and again, it was %s: %s", again.Opening, again.Note)
			}
			o, last = again, begin
		}
	}},
	{"a session ends at its maximum lifetime, also in use", []need{needSessions}, func(t *testing.T, h *harness) {
		spec := h.sessionSpec("short")
		spec.MaxLifetime = atoll.Duration(2 * h.idleTimeout())
		_, sb := h.openSession(t, spec)
		if _, err := sb.Exec(h.newContext(t), scriptCommand("ready")); err != nil && atoll.KindOf(err) != atoll.ErrNotFound && atoll.KindOf(err) != atoll.ErrStopped {
			t.Errorf("Exec: %v", err)
		}
		h.waitUntilGone(t, sb, 2*h.shortLimit())
		if again, _ := h.openSession(t, h.sessionSpec("short")); again.Opening == session.OpeningFound {
			t.Errorf("the second OpenSession returned %+v", again)
		}
	}},
	{"another provider value has the same sessions", []need{needSessions, needSurvives}, func(t *testing.T, h *harness) {
		o, _ := h.openSession(t, h.sessionSpec("one"))
		p2 := h.reopenProvider(t)
		again, err := session.Open(h.newContext(t), p2, h.sessionSpec("one"))
		if err != nil || again.Sandbox != o.Sandbox || again.Opening != session.OpeningFound {
			t.Errorf("OpenSession by the second value: %+v, %v", again, err)
		}
		if err := session.Close(h.newContext(t), p2, "", o.Key); err != nil {
			t.Errorf("CloseSession by the second value: %v", err)
		}
		if all := h.listSessions(t, ""); len(all) > 0 {
			t.Errorf("Sessions = %+v after CloseSession by the second value, want none", all)
		}
	}},
	{"OpenSession refuses an invalid spec", []need{needSessions}, func(t *testing.T, h *harness) {
		for what, change := range map[string]func(*session.Spec){
			"no kind":             func(s *session.Spec) { s.Scope.Kind = "" },
			"an unknown kind":     func(s *session.Spec) { s.Scope.Kind = "team" },
			"no id":               func(s *session.Spec) { s.Scope.ID = "" },
			"an invalid id":       func(s *session.Spec) { s.Scope.ID = "../x" },
			"an invalid project":  func(s *session.Spec) { s.Project = "a b" },
			"an invalid workflow": func(s *session.Spec) { s.Workflow = "a b" },
			"a sandbox id":        func(s *session.Spec) { s.Sandbox.ID = atoll.NewID() },
			"a sandbox TTL":       func(s *session.Spec) { s.Sandbox.TTL = 1 },
			"AutoRemove":          func(s *session.Spec) { s.Sandbox.Cmd, s.Sandbox.AutoRemove = []string{"true"}, true },
			"an invalid sandbox":  func(s *session.Spec) { s.Sandbox.Env = []string{"x"} },
			"an invalid timeout":  func(s *session.Spec) { s.IdleTimeout = -2 },
			"an invalid lifetime": func(s *session.Spec) { s.MaxLifetime = -2 },
		} {
			spec := h.sessionSpec("one")
			change(spec)
			_, err := session.Open(h.newContext(t), h.p, spec)
			wantKind(t, "OpenSession with "+what, err, atoll.ErrInvalid)
		}
		ctx, cancel := context.WithCancel(h.newContext(t))
		cancel()
		_, err := session.Open(ctx, h.p, h.sessionSpec("one"))
		wantCtx(t, "OpenSession", err, context.Canceled)
		if all := h.listSessions(t, ""); len(all) > 0 {
			t.Errorf("Sessions = %+v, want none", all)
		}
	}},
}

// sessionSpec returns the spec of a session of a workflow, with defaults.
func (h *harness) sessionSpec(id string) *session.Spec {
	return &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: id}, Sandbox: *h.completeSpec(atoll.Spec{})}
}

// idleTimeout returns an idle timeout that is long enough to start a command in a session's sandbox.
func (h *harness) idleTimeout() time.Duration { return min(h.shortLimit()/4, h.idleStop()) }

// openSession opens a session, and returns it and its sandbox. The end of the subtest removes the
// sandbox.
func (h *harness) openSession(t *testing.T, spec *session.Spec) (session.OpenResult, atoll.Sandbox) {
	t.Helper()
	o, err := session.Open(h.newContext(t), h.p, spec)
	if err != nil {
		t.Fatalf("OpenSession: %v", err)
	}
	h.removeAtEnd(o.Sandbox)
	h.census.recordProcesses()
	sb, err := h.p.Get(h.newContext(t), o.Sandbox)
	if err != nil {
		t.Fatalf("Get of %s session %s: %v", o.Opening, o.Key, err)
	}
	return o, sb
}

// listSessions returns the sessions of a project, and checks that all are open.
func (h *harness) listSessions(t *testing.T, project string) []session.Session {
	t.Helper()
	all, err := session.List(h.newContext(t), h.p, project)
	if err != nil {
		t.Fatalf("Sessions: %v", err)
	}
	for _, s := range all {
		if s.State != session.StateOpen || s.Problem != "" {
			t.Errorf("session %s is %s (%s)", s.Key, s.State, s.Problem)
		}
	}
	return all
}
