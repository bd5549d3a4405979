//go:build linux

package gvisor_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// An unreadable record, left by a power cut or a bad disk, breaks one sandbox only, which
// reports it and can be removed. Its work is still there.
func TestDamagedRecord(t *testing.T) {
	l := newLab(t)
	bad, good := l.NewSandbox(atoll.Spec{Name: "bad"}), l.NewSandbox(atoll.Spec{Name: "good"})
	l.Sh(bad, "echo work > file")
	l.Must("stop", bad.Stop(l.Context(), 0))
	l.Must("damage", os.WriteFile(l.RecordPath(bad), nil, 0o600))

	states := func(list []atoll.Status, err error) string {
		t.Helper()
		l.Must("list", err)
		var all []string
		for _, st := range list {
			all = append(all, st.Spec.Name+" "+string(st.State))
		}
		return strings.Join(all, ", ")
	}
	if got := states(l.List(l.Context(), atoll.Filter{Project: atoll.DefaultProject, States: []atoll.State{atoll.StateFailed}})); got != "bad failed" {
		t.Errorf("failed are: %s", got)
	}
	if got := states(l.List(l.Context(), atoll.Filter{States: []atoll.State{atoll.StateRunning}})); got != "good running" {
		t.Errorf("running are: %s", got)
	}
	var replayed []atoll.Status
	for ev, err := range l.Watch(l.Context()) {
		l.Must("watch", err)
		if ev.Type == atoll.EventSynced {
			break
		}
		replayed = append(replayed, ev.Status)
	}
	if len(replayed) != 2 {
		t.Errorf("watched: %s", states(replayed, nil))
	}
	again := openLab(t, l.opts) // sweeps
	st := again.Status(bad)
	if st.State != atoll.StateFailed || !strings.Contains(st.Reason, "record cannot be read") || !st.Caps.Files || st.Provider != "gvisor" {
		t.Errorf("status %+v", st)
	}
	sb, err := atoll.Resolve(l.Context(), l, "", "bad")
	if err != nil || sb.ID() != bad.ID() {
		t.Errorf("resolve: %v, %v", sb, err)
	}
	supervisedtest.WantKind(t, "start", bad.Start(l.Context()), atoll.ErrInternal, "record cannot be read")
	_, err = bad.Exec(l.Context(), &atoll.Command{Args: []string{"true"}})
	supervisedtest.WantKind(t, "exec", err, atoll.ErrStopped, "record cannot be read")
	l.Must("stop", bad.Stop(l.Context(), 0))
	if got, err := atoll.ReadFile(l.Context(), bad, "file"); string(got) != "work\n" || err != nil {
		t.Errorf("its work: %q, %v", got, err)
	}
	volumes, err := atoll.Volumes(l.Context(), l, "")
	if err != nil || len(volumes) != 2 || !volumes[0].InUse || !volumes[1].InUse {
		t.Errorf("volumes: %+v, %v", volumes, err)
	}
	supervisedtest.WantKind(t, "remove a volume", atoll.RemoveVolume(context.Background(), l, "", "none"), atoll.ErrNotExist)

	l.RemoveSandbox(bad)
	if left := l.ListFiles(t); strings.Contains(strings.Join(left, " "), bad.ID()) {
		t.Errorf("left: %v", left)
	}
	if _, err := atoll.Resolve(l.Context(), l, "", "bad"); !errors.Is(err, atoll.ErrNotFound) {
		t.Errorf("resolve after its removal: %v", err)
	}
	l.Sh(good, "true")

	l.Must("damage", os.WriteFile(l.RecordPath(good), []byte("{"), 0o600)) // while it runs
	l.Must("remove project", atoll.RemoveProject(l.Context(), l, atoll.DefaultProject))
	l.Must("close", l.Close())
	l.Must("close", again.Close())
	if left := supervisedtest.ListCgroups(t, l.opts.Cgroup); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
