//go:build linux

package gvisor_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// An unreadable record, left by a power cut or a bad disk, breaks one sandbox only, which
// reports it and can be removed. Its work is still there.
func TestDamagedRecord(t *testing.T) {
	l := newLab(t)
	bad, good := l.create(atoll.Spec{Name: "bad"}), l.create(atoll.Spec{Name: "good"})
	l.sh(bad, "echo work > file")
	l.must("stop", bad.Stop(l.ctx(), 0))
	l.must("damage", os.WriteFile(l.recordPath(bad), nil, 0o600))

	states := func(list []atoll.Status, err error) string {
		t.Helper()
		l.must("list", err)
		var all []string
		for _, st := range list {
			all = append(all, st.Spec.Name+" "+string(st.State))
		}
		return strings.Join(all, ", ")
	}
	if got := states(l.List(l.ctx(), atoll.Filter{Project: atoll.DefaultProject, States: []atoll.State{atoll.StateFailed}})); got != "bad failed" {
		t.Errorf("failed are: %s", got)
	}
	if got := states(l.List(l.ctx(), atoll.Filter{States: []atoll.State{atoll.StateRunning}})); got != "good running" {
		t.Errorf("running are: %s", got)
	}
	var replayed []atoll.Status
	for ev, err := range l.Watch(l.ctx()) {
		l.must("watch", err)
		if ev.Type == atoll.EventSynced {
			break
		}
		replayed = append(replayed, ev.Status)
	}
	if len(replayed) != 2 {
		t.Errorf("watched: %s", states(replayed, nil))
	}
	again := openLab(t, l.opts) // sweeps
	st := again.status(bad)
	if st.State != atoll.StateFailed || !strings.Contains(st.Reason, "record cannot be read") || !st.Caps.Files || st.Provider != "gvisor" {
		t.Errorf("status %+v", st)
	}
	sb, err := atoll.Resolve(l.ctx(), l, "", "bad")
	if err != nil || sb.ID() != bad.ID() {
		t.Errorf("resolve: %v, %v", sb, err)
	}
	wantKind(t, "start", bad.Start(l.ctx()), atoll.ErrInternal, "record cannot be read")
	_, err = bad.Exec(l.ctx(), &atoll.Command{Args: []string{"true"}})
	wantKind(t, "exec", err, atoll.ErrStopped, "record cannot be read")
	l.must("stop", bad.Stop(l.ctx(), 0))
	if got, err := atoll.ReadFile(l.ctx(), bad, "file"); string(got) != "work\n" || err != nil {
		t.Errorf("its work: %q, %v", got, err)
	}
	volumes, err := atoll.Volumes(l.ctx(), l, "")
	if err != nil || len(volumes) != 2 || !volumes[0].InUse || !volumes[1].InUse {
		t.Errorf("volumes: %+v, %v", volumes, err)
	}
	wantKind(t, "remove a volume", atoll.RemoveVolume(context.Background(), l, "", "none"), atoll.ErrNotExist)

	l.remove(bad)
	if left := leftOnDisk(t, l.opts); strings.Contains(strings.Join(left, " "), bad.ID()) {
		t.Errorf("left: %v", left)
	}
	if _, err := atoll.Resolve(l.ctx(), l, "", "bad"); !errors.Is(err, atoll.ErrNotFound) {
		t.Errorf("resolve after its removal: %v", err)
	}
	l.sh(good, "true")

	l.must("damage", os.WriteFile(l.recordPath(good), []byte("{"), 0o600)) // while it runs
	l.must("remove project", atoll.RemoveProject(l.ctx(), l, atoll.DefaultProject))
	l.must("close", l.Close())
	l.must("close", again.Close())
	if left := listCgroups(t, l.opts.Cgroup); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
