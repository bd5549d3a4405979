package providertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var createPromises = []promise{
	{"Create returns a running sandbox in which Exec works at once", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if got := h.runForOutput(t, sb, programCommand("echo", "hello")); got != "hello" {
			t.Errorf("echo hello printed %q", got)
		}
		st := h.getStatus(t, sb)
		if st.State != atoll.StateRunning || !st.Ready {
			t.Errorf("state %q, ready %v; want running and ready", st.State, st.Ready)
		}
		if name := h.p.Info().Name; st.Provider != name || st.Spec.Provider != name {
			t.Errorf("Status.Provider = %q, that of its spec %q, want %q", st.Provider, st.Spec.Provider, name)
		}
		now := time.Now()
		if st.Created.IsZero() || st.Started.Before(st.Created) || st.Started.After(now) {
			t.Errorf("created %v, started %v, now %v: want them in this order", st.Created, st.Started, now)
		}
		if !st.Stopped.IsZero() || !st.Expires.IsZero() || st.Exit != nil || st.Reason != "" {
			t.Errorf("a running sandbox has stopped %v, expires %v, exit %v, reason %q", st.Stopped, st.Expires, st.Exit, st.Reason)
		}
	}},
	{"Status, Get and List give back what Create was asked for", nil, func(t *testing.T, h *harness) {
		spec := h.completeSpec(fullSpec())
		sb := h.createSandbox(t, *spec)
		checkSpec(t, "Create", h.getStatus(t, sb).Spec, spec)
		got, err := h.p.Get(h.newContext(t), sb.ID())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if got.ID() != sb.ID() {
			t.Errorf("Get(%s) has id %s", sb.ID(), got.ID())
		}
		checkSpec(t, "Get", h.getStatus(t, got).Spec, spec)
		all, err := h.p.List(h.newContext(t), atoll.Filter{})
		if err != nil || len(all) != 1 {
			t.Fatalf("List: %d sandboxes, %v; want 1", len(all), err)
		}
		checkSameStatus(t, "List", all[0], h.getStatus(t, got))
	}},
	{"programs see the variables that layers add, and layers get back what they added", nil, func(t *testing.T, h *harness) {
		added := atoll.System{Env: []string{"B=layer", "C=layer"}, Notes: map[string]string{"layer.key": "value"}, Warm: true}
		sb := h.createSandbox(t, atoll.Spec{Env: []string{"A=spec", "B=spec"}, System: added})
		if all, err := atoll.Processes(h.newContext(t), sb); err == nil && len(all) > 0 {
			t.Errorf("a warm sandbox shows the process %+v", all[0])
		}
		cmd := programCommand("env")
		cmd.Env = []string{"C=command"}
		env := strings.Split(h.runForOutput(t, sb, cmd), "\n")
		for _, want := range []string{"A=spec", "B=layer", "C=command"} {
			if !slices.Contains(env, want) {
				t.Errorf("%s is missing in the environment %q", want, env)
			}
		}
		spec := h.getStatus(t, sb).Spec // it may have more from further layers
		if got := spec.System; spec.Note("layer.key") != "value" || !got.Warm || !slices.Contains(got.Env, "B=layer") || !slices.Contains(got.Env, "C=layer") || !slices.Equal(spec.Env, []string{"A=spec", "B=spec"}) {
			t.Errorf("the status has the variables %q and %+v, want %+v", spec.Env, got, added)
		}
	}},
	{"Create neither changes nor keeps the spec", nil, func(t *testing.T, h *harness) {
		spec := h.completeSpec(fullSpec())
		same := h.completeSpec(fullSpec())
		sb, err := h.p.Create(h.newContext(t), spec)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		h.removeAtEnd(sb.ID())
		if !reflect.DeepEqual(spec, same) {
			t.Errorf("Create changed the spec to %+v", spec)
		}
		spec.Labels["color"] = "changed"
		spec.Env[0] = "COLOR=changed"
		checkSpec(t, "after a change of the caller's spec", h.getStatus(t, sb).Spec, same)
		st := h.getStatus(t, sb)
		st.Spec.Labels["color"] = "changed"
		checkSpec(t, "after a change of a Status", h.getStatus(t, sb).Spec, same)
	}},
	{"the zero Spec gets a random id of 32 hex digits", nil, func(t *testing.T, h *harness) {
		a, b := h.plainSandbox(t), h.plainSandbox(t)
		for _, sb := range []atoll.Sandbox{a, b} {
			if !regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`).MatchString(sb.ID()) {
				t.Errorf("id %q is not a version 4 UUID of 32 lower-case hex digits", sb.ID())
			}
		}
		if a.ID() == b.ID() {
			t.Error("two sandboxes have the same id")
		}
	}},
	{"Create and Get accept an id with hyphens and drop the hyphens", nil, func(t *testing.T, h *harness) {
		const hyphens, plain = "6F9619FF-8B86-4011-B42D-00CF4FC964FF", "6f9619ff8b864011b42d00cf4fc964ff"
		sb := h.createSandbox(t, atoll.Spec{ID: hyphens})
		if sb.ID() != plain {
			t.Errorf("id = %q, want %q", sb.ID(), plain)
		}
		for _, id := range []string{hyphens, strings.ToLower(hyphens), plain} {
			got, err := h.p.Get(h.newContext(t), id)
			if err != nil {
				t.Errorf("Get(%s): %v", id, err)
			} else if got.ID() != plain {
				t.Errorf("Get(%s) has id %q", id, got.ID())
			}
		}
		if st := h.getStatus(t, sb); st.ID != plain || st.Spec.ID != plain {
			t.Errorf("Status has ids %q and %q, want %q", st.ID, st.Spec.ID, plain)
		}
	}},
	{"Create with a reserved id returns the reserved sandbox, which nobody sees before", nil, func(t *testing.T, h *harness) {
		id, err := atoll.Reserve(h.newContext(t), h.p, &atoll.Spec{Name: "web"})
		if err != nil {
			t.Fatalf("Reserve: %v", err)
		}
		if id == "" {
			t.Skip("the provider reserves no sandboxes")
		}
		_, err = h.p.Get(h.newContext(t), id)
		wantKind(t, "Get before Create", err, atoll.ErrNotFound)
		if ids := h.listIDs(t); len(ids) > 0 {
			t.Errorf("List has %s before Create, want none", ids)
		}
		sb := h.createSandbox(t, atoll.Spec{ID: id, Name: "web", Labels: map[string]string{"a": "b"}})
		if st := h.getStatus(t, sb); sb.ID() != id || st.Spec.Name != "web" || st.Spec.Labels["a"] != "b" {
			t.Errorf("Create returned %s with spec %+v, want %s", sb.ID(), st.Spec, id)
		}
		h.runForOutput(t, sb, programCommand("echo", "alive"))
		if other, err := atoll.Reserve(h.newContext(t), h.p, &atoll.Spec{}); err != nil || other == id {
			t.Errorf("Reserve again: %s, %v", other, err)
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		again := h.createSandbox(t, atoll.Spec{ID: id, Env: []string{"COLOUR=blue"}})
		if got := h.runForOutput(t, again, programCommand("env")); again.ID() != id || !strings.Contains(got, "COLOUR=blue") {
			t.Errorf("created again it is %s, with the environment %q", again.ID(), got)
		}
	}},
	{"Create accepts an id that was reserved for another spec", nil, func(t *testing.T, h *harness) {
		id, err := atoll.Reserve(h.newContext(t), h.p, &atoll.Spec{})
		if err != nil {
			t.Fatalf("Reserve: %v", err)
		}
		if id == "" {
			t.Skip("the provider reserves no sandboxes")
		}
		sb := h.createSandbox(t, atoll.Spec{ID: id, Env: []string{"COLOUR=blue"}})
		if got := h.runForOutput(t, sb, programCommand("env")); sb.ID() != id || !strings.Contains(got, "COLOUR=blue") {
			t.Errorf("the sandbox is %s, with the environment %q", sb.ID(), got)
		}
	}},
	{"Create refuses an id that is taken", nil, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.wantRefused(t, atoll.Spec{ID: sb.ID()}, atoll.ErrAlreadyExists)
		h.runForOutput(t, sb, programCommand("echo", "alive"))
	}},
	{"Create refuses a name that is taken in the same project only", nil, func(t *testing.T, h *harness) {
		a := h.createSandbox(t, atoll.Spec{Name: "web"})
		h.wantRefused(t, atoll.Spec{Name: "web"}, atoll.ErrAlreadyExists)
		h.wantRefused(t, atoll.Spec{Name: "web", Project: atoll.DefaultProject}, atoll.ErrAlreadyExists)
		b := h.createSandbox(t, atoll.Spec{Name: "web", Project: "other"})
		for project, want := range map[string]string{"": a.ID(), "other": b.ID()} {
			got, err := atoll.Resolve(h.newContext(t), h.p, project, "web")
			if err != nil {
				t.Errorf("Resolve(%q, web): %v", project, err)
			} else if got.ID() != want {
				t.Errorf("Resolve(%q, web) = %s, want %s", project, got.ID(), want)
			}
		}
		_, err := atoll.Resolve(h.newContext(t), h.p, "third", "web")
		wantKind(t, "Resolve in another project", err, atoll.ErrNotFound)
	}},
	{"a name is free again after its sandbox was removed", nil, func(t *testing.T, h *harness) {
		first := h.createSandbox(t, atoll.Spec{Name: "web"})
		if err := first.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		second := h.createSandbox(t, atoll.Spec{Name: "web"})
		got, err := atoll.Resolve(h.newContext(t), h.p, "", "web")
		if err != nil || got.ID() != second.ID() {
			t.Errorf("Resolve gives %v, %v; want the second sandbox", got, err)
		}
	}},
	{"of ten concurrent creates with one id, one succeeds", nil, func(t *testing.T, h *harness) {
		checkOnlyOne(t, h, atoll.Spec{ID: atoll.NewID()})
	}},
	{"of ten concurrent creates with one name, one succeeds", nil, func(t *testing.T, h *harness) {
		checkOnlyOne(t, h, atoll.Spec{Name: "web"})
	}},
	{"many sandboxes with limits can be created, used and removed at once", nil, func(t *testing.T, h *harness) {
		checkManyAtOnce(t, h)
	}},
	{"NoStart leaves the sandbox created, Start runs it", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{NoStart: true})
		if st := h.getStatus(t, sb); st.State != atoll.StateCreated || st.Ready || !st.Started.IsZero() {
			t.Errorf("state %q, ready %v, started %v; want created, never started", st.State, st.Ready, st.Started)
		}
		_, err := sb.Exec(h.newContext(t), programCommand("true"))
		wantKind(t, "Exec", err, atoll.ErrStopped)
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if st := h.getStatus(t, sb); st.State != atoll.StateRunning {
			t.Errorf("state is %q after Start", st.State)
		}
		h.runForOutput(t, sb, programCommand("echo", "hello"))
	}},
	{"a main process that exits with 0 stops the sandbox", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("exit", 0)})
		st := h.waitForState(t, sb, atoll.StateStopped)
		if st.Exit == nil || st.Exit.Code != 0 {
			t.Errorf("exit is %v, want code 0", st.Exit)
		}
		if st.Stopped.IsZero() || st.Ready {
			t.Errorf("stopped at %v, ready %v", st.Stopped, st.Ready)
		}
		_, err := sb.Exec(h.newContext(t), programCommand("true"))
		wantKind(t, "Exec", err, atoll.ErrStopped)
	}},
	{"a main process that exits with another code fails the sandbox, with a reason", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("exit", 3)})
		st := h.waitForState(t, sb, atoll.StateFailed)
		if st.Exit == nil || st.Exit.Code != 3 {
			t.Errorf("exit is %v, want code 3", st.Exit)
		}
		if !strings.Contains(st.Reason, "3") {
			t.Errorf("reason %q does not say the code", st.Reason)
		}
	}},
	{"a main process ended by SIGTERM stops the sandbox", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("ready")})
		p := h.waitForOutput(t, sb, "ready\n") // the process that starts it may ignore the signal
		if err := p.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Fatalf("Signal: %v", err)
		}
		st := h.waitForState(t, sb, atoll.StateStopped)
		if st.Exit == nil || st.Exit.Code != 143 {
			t.Errorf("exit is %v, want code 143", st.Exit)
		}
	}},
	{"output and exit of a main process are available, however soon it ends", nil, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Cmd: scriptArgs("both", "hello", "world")})
		p, err := sb.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		stdout, stderr := newScreen(), newScreen()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdout: stdout, Stderr: stderr}); err != nil {
			t.Errorf("Attach: %v", err)
		}
		if stdout.readText() != "hello\n" || stderr.readText() != "world\n" {
			t.Errorf("stdout %q, stderr %q; want hello and world", stdout.readText(), stderr.readText())
		}
		if exit := h.waitExit(t, p); exit.Code != 0 {
			t.Errorf("exit is %v", exit)
		}
	}},
	{"a main process reads attached input if OpenStdin is set, else end of file", nil, func(t *testing.T, h *harness) {
		closed := h.createSandbox(t, atoll.Spec{Cmd: []string{"cat"}})
		h.waitForState(t, closed, atoll.StateStopped)

		open := h.createSandbox(t, atoll.Spec{Cmd: []string{"cat"}, OpenStdin: true})
		p, err := open.Process(h.newContext(t), atoll.MainProcess)
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		stdout := newScreen()
		if err := p.Attach(h.newContext(t), &atoll.Attachment{Stdin: strings.NewReader("typed"), Stdout: stdout}); err != nil {
			t.Errorf("Attach: %v", err)
		}
		if stdout.readText() != "typed" {
			t.Errorf("cat printed %q, want what was typed", stdout.readText())
		}
		h.waitForState(t, open, atoll.StateStopped)
	}},
	{"Create refuses a missing main program and leaves nothing", nil, func(t *testing.T, h *harness) {
		h.wantRefused(t, atoll.Spec{Cmd: []string{"no-such-program"}}, atoll.ErrExecFailed)
	}},
	{"Create refuses an invalid spec", nil, func(t *testing.T, h *harness) {
		for name, s := range invalidSpecs() {
			t.Run(name, func(t *testing.T) { h.wantRefused(t, s, atoll.ErrInvalid) })
		}
	}},
	{"Create refuses a work directory that it cannot make", []need{needIsolation}, func(t *testing.T, h *harness) {
		h.wantRefused(t, atoll.Spec{Workdir: "/bin/sh/below/a/file"}, atoll.ErrInvalid, atoll.ErrNotExist, atoll.ErrExecFailed)
	}},
	{"Create refuses an unknown user of the main process", []need{needUsers}, func(t *testing.T, h *harness) {
		h.wantRefused(t, atoll.Spec{User: "nobody-of-that-name", Cmd: scriptArgs("ready")}, atoll.ErrInvalid, atoll.ErrNotExist, atoll.ErrExecFailed)
	}},
	{"Create refuses a missing image", []need{needImages}, func(t *testing.T, h *harness) {
		h.wantRefused(t, atoll.Spec{Image: "NO such::image"}, atoll.ErrInvalid, atoll.ErrNotExist)
	}},
	{"a Create whose context has ended leaves nothing", nil, func(t *testing.T, h *harness) {
		ctx, cancel := context.WithCancel(h.newContext(t))
		cancel()
		sb, err := h.p.Create(ctx, h.completeSpec(atoll.Spec{}))
		if err == nil {
			h.removeAtEnd(sb.ID())
			t.Error("Create with an ended context succeeded")
		} else {
			wantCtx(t, "Create", err, context.Canceled)
		}
		checkNoSandbox(t, h, h.p)
	}},
	{"a Create whose context ends at any moment makes a sandbox or leaves nothing", nil, func(t *testing.T, h *harness) {
		begin := time.Now()
		if err := h.plainSandbox(t).Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		took := time.Since(begin)
		for i := range 12 {
			ctx, cancel := context.WithTimeout(h.newContext(t), took*time.Duration(i)/10)
			sb, err := h.p.Create(ctx, h.completeSpec(atoll.Spec{Name: "web"}))
			cancel()
			if err == nil {
				h.runForOutput(t, sb, programCommand("echo", "works"))
				err := sb.Remove(h.newContext(t), atoll.RemoveVolumes())
				if err != nil {
					t.Errorf("Remove: %v", err)
				}
			} else {
				wantCtx(t, "Create", err, context.DeadlineExceeded)
			}
			checkNoSandbox(t, h, h.p)
		}
	}},
	{"the context of Create bounds the call, not the sandbox", nil, func(t *testing.T, h *harness) {
		ctx, cancel := context.WithCancel(h.newContext(t))
		sb, err := h.p.Create(ctx, h.completeSpec(atoll.Spec{Cmd: scriptArgs("ready")}))
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		h.removeAtEnd(sb.ID())
		cancel()
		h.runForOutput(t, sb, programCommand("echo", "hello"))
		if st := h.getStatus(t, sb); st.State != atoll.StateRunning {
			t.Errorf("state is %q after the context ended", st.State)
		}
	}},
	{"Prepare fetches what Create needs", nil, func(t *testing.T, h *harness) {
		if err := atoll.Prepare(h.newContext(t), h.p, h.completeSpec(atoll.Spec{}), nil); err != nil {
			t.Errorf("Prepare: %v", err)
		}
		if pr := atoll.ProbeProvider(h.newContext(t), h.p); !pr.OK {
			t.Errorf("Probe says that the provider does not work here: %s", pr.Reason)
		}
		h.plainSandbox(t)
	}},
	{"a spec may name the provider, and no other", nil, func(t *testing.T, h *harness) {
		name := h.p.Info().Name
		sb := h.createSandbox(t, atoll.Spec{Provider: name})
		checkSpec(t, "Create", h.getStatus(t, sb).Spec, h.completeSpec(atoll.Spec{ID: sb.ID(), Provider: name}))
		h.wantRefused(t, atoll.Spec{Provider: "nosuch"}, atoll.ErrInvalid)
		if err := atoll.Prepare(h.newContext(t), h.p, h.completeSpec(atoll.Spec{Provider: "nosuch"}), nil); err != nil { // a provider with nothing to prepare may ignore the name
			wantKind(t, "Prepare", err, atoll.ErrInvalid)
		}
		for _, f := range []atoll.Filter{{}, {Provider: name}} {
			if all, err := h.p.List(h.newContext(t), f); err != nil || len(all) != 1 {
				t.Errorf("List(%+v): %d sandboxes, %v; want 1", f, len(all), err)
			}
		}
		all, err := h.p.List(h.newContext(t), atoll.Filter{Provider: "nosuch"})
		if len(all) > 0 || err != nil && atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("List of another provider: %d sandboxes, %v; want none", len(all), err)
		}
		members, err := atoll.Members(h.newContext(t), h.p)
		if err != nil || len(members) == 0 || members[0].Info != h.p.Info() || !members[0].InUse || members[0].Problem != "" {
			t.Errorf("Members: %+v, %v; want the provider itself first, in use and without a problem", members, err)
		}
	}},
	{"Info never changes", nil, func(t *testing.T, h *harness) {
		before := h.p.Info()
		if before.Name == "" || before.Isolation == "" || before.Caps.Durable == "" {
			t.Errorf("Info() = %+v, want a name, an isolation and a durability", before)
		}
		h.plainSandbox(t)
		if after := h.p.Info(); after != before {
			t.Errorf("Info() = %+v, was %+v", after, before)
		}
	}},
}

// fullSpec returns a spec that requests everything that all providers can do.
func fullSpec() atoll.Spec {
	return atoll.Spec{
		Name:    "full",
		Project: "project-1",
		Labels:  map[string]string{"color": "red", "empty": "", "odd key / ü": "odd value\n"},
		Env:     []string{"COLOR=red", "EMPTY=", "EQUALS=a=b"},
		Workdir: "/work/deep/er",
		Ports:   []atoll.Port{{Name: "http", Port: 8080}, {Port: 9}},
		TTL:     atoll.Duration(time.Hour),
	}
}

// checkSpec compares the spec of a Status with the requested one. Image, user and limits may be the
// provider's choice if the request leaves them open.
func checkSpec(t *testing.T, what string, got atoll.Spec, asked *atoll.Spec) {
	t.Helper()
	want := asked.WithDefaults()
	if asked.ID == "" {
		want.ID = got.ID
	}
	if want.Image == "" {
		want.Image = got.Image
	}
	if want.User == "" {
		want.User = got.User
	}
	if sameFields(got.Resources, want.Resources) {
		want.Resources = got.Resources
	}
	got.System, want.System = atoll.System{}, atoll.System{} // another promise is about it
	if want.Provider = asked.Provider; want.Provider == "" {
		want.Provider = got.Provider
	}
	if !reflect.DeepEqual(&got, want) {
		t.Errorf("%s: spec\n got %+v\nwant %+v", what, &got, want)
	}
}

// checkSameStatus compares all fields that do not change by themselves. got may have a more exact image.
func checkSameStatus(t *testing.T, what string, got, want atoll.Status) {
	t.Helper()
	if name, _, exact := strings.Cut(got.Image, "@"); exact && name == want.Image {
		want.Image = got.Image
	}
	for _, st := range []*atoll.Status{&got, &want} {
		st.Created, st.Started = st.Created.Round(0).UTC(), st.Started.Round(0).UTC()
		st.Stopped, st.Expires = st.Stopped.Round(0).UTC(), st.Expires.Round(0).UTC()
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: status\n got %+v\nwant %+v", what, got, want)
	}
}

// checkOnlyOne calls Create ten times at once with the same spec, and checks that one call succeeds.
func checkOnlyOne(t *testing.T, h *harness, s atoll.Spec) {
	t.Helper()
	errs := inParallel(10, func(int) error {
		sb, err := h.p.Create(h.newContext(t), h.completeSpec(s))
		if err == nil {
			h.removeAtEnd(sb.ID())
		}
		return err
	})
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
			continue
		}
		wantKind(t, "Create", err, atoll.ErrAlreadyExists, atoll.ErrConflict)
	}
	if ids := h.listIDs(t); made != 1 || len(ids) != 1 {
		t.Errorf("%d creates succeeded and %d sandboxes are listed, want 1 and 1", made, len(ids))
	}
}

// checkManyAtOnce creates Count sandboxes at once, and uses and removes each.
func checkManyAtOnce(t *testing.T, h *harness) {
	t.Helper()
	spec := atoll.Spec{}
	if caps := h.p.Info().Caps; caps.MemoryLimit {
		spec.Resources.Memory = 128 << 20
	}
	if caps := h.p.Info().Caps; caps.ProcessLimit {
		spec.Resources.Processes = 64
	}
	errs := inParallel(h.cfg.count, func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), h.longLimit())
		defer cancel()
		s := spec
		s.Name = "n" + strconv.Itoa(i)
		sb, err := h.p.Create(ctx, h.completeSpec(s))
		if err != nil {
			return err
		}
		h.removeAtEnd(sb.ID())
		out, err := atoll.Output(ctx, sb, programCommand("echo", s.Name))
		if err == nil && string(out) != s.Name+"\n" {
			err = fmt.Errorf("%s printed %q", s.Name, out)
		}
		return errors.Join(err, sb.Remove(ctx, atoll.RemoveVolumes()))
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("sandbox %d of %d: %v", i+1, h.cfg.count, err)
		}
	}
	checkNoSandbox(t, h, h.p)
}

// inParallel calls f with 0 to n-1 in parallel and returns the errors.
func inParallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

// invalidSpecs returns invalid specs by name.
func invalidSpecs() map[string]atoll.Spec {
	return map[string]atoll.Spec{
		"id":              {ID: "not-a-uuid"},
		"name":            {Name: "a b"},
		"name too long":   {Name: strings.Repeat("a", 66)},
		"project":         {Project: "../up"},
		"label":           {Labels: map[string]string{"atoll.x": ""}},
		"env":             {Env: []string{"NO_EQUALS_SIGN"}},
		"env NUL":         {Env: []string{"A=\x00"}},
		"empty command":   {Cmd: []string{""}},
		"workdir":         {Workdir: "relative"},
		"workdir root":    {Workdir: "/"},
		"user":            {User: "a b"},
		"mount target":    {Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "relative"}}},
		"mount twice":     {Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/a"}, {Type: atoll.MountTmpfs, Target: "/a/"}}},
		"mount source":    {Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "relative", Target: "/a"}}},
		"mount type":      {Mounts: []atoll.Mount{{Type: "nfs", Target: "/a"}}},
		"volume name":     {Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "../up", Target: "/a"}}},
		"cpus":            {Resources: atoll.Resources{CPUs: math.NaN()}},
		"workdir NUL":     {Workdir: "/work\x00"},
		"image NUL":       {Image: "a\x00"},
		"command NUL":     {Cmd: []string{"echo", "\x00"}},
		"command no text": {Cmd: []string{"echo", "\xff"}},
		"env no text":     {Env: []string{"A=\xff"}},
		"label no text":   {Labels: map[string]string{"k": "\xff"}},
		"mount no text":   {Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/\xff", Target: "/a"}}},
		"mount NUL":       {Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/a\x00"}}},
		"memory":          {Resources: atoll.Resources{Memory: -2}},
		"network":         {Network: atoll.Network{Mode: "host"}},
		"allow":           {Network: atoll.Network{Allow: []string{"example.com"}}},
		"port":            {Ports: []atoll.Port{{Port: 65536}}},
		"ttl":             {TTL: -1},
		"auto remove":     {AutoRemove: true},
		"snapshot, image": {Snapshot: "x", Image: "y"},
	}
}
