//go:build linux

package vmdocker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/vmdocker"
)

// An engine that does not answer does not block read-only calls. A call that uses it starts its
// machine again, once.
func TestSilentEngine(t *testing.T) {
	const project = "silent"
	everything(t, "it takes 490 s with other work to do")
	var log bytes.Buffer
	p := open(t, func(o *vmdocker.Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		o.WithReady(15 * time.Second)
	})
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), project); err != nil {
			t.Error(err)
		}
	})
	a := create(t, p, atoll.Spec{Project: project})
	b := create(t, p, atoll.Spec{Project: project})
	machine, err := p.machines.Get(t.Context(), machineOf(t, p, project).ID)
	if err != nil {
		t.Fatal(err)
	}
	run(t, machine, "kill -STOP $(pidof dockerd)")

	begin := time.Now()
	list, err := p.List(t.Context(), atoll.Filter{Project: project})
	if err != nil || len(list) != 2 || list[0].State != atoll.StateRunning {
		t.Errorf("List: %+v, %v; want what was last heard", list, err)
	}
	_, err = a.Exec(t.Context(), &atoll.Command{Args: []string{"true"}})
	if !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Exec: %v, want ErrUnavailable", err)
	}
	t.Logf("looking took %d ms", time.Since(begin).Milliseconds())
	if log.Len() > 0 {
		t.Errorf("read-only calls logged %q", &log)
	}

	begin = time.Now()
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("started again after %d ms", time.Since(begin).Milliseconds())
	if said := log.String(); strings.Count(said, "msg=restart") != 1 || !strings.Contains(said, machine.ID()) {
		t.Errorf("the log says %q", said)
	}
	if machineOf(t, p, project).ID == machine.ID() {
		t.Error("it is the same machine")
	}
	if st := status(t, b); st.State != atoll.StateStopped {
		t.Errorf("another sandbox of the machine is %s (%s)", st.State, st.Reason)
	}
	run(t, a, "true")
}
