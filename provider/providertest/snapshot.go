package providertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var snapshotPromises = []promise{
	{"a snapshot holds the files of its moment, and many sandboxes can start from it", []need{needSnapshot, needIsolation}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Name: "original", Env: []string{"A=b"}})
		if h.runForCode(t, sb, scriptCommand("store", "/atoll-snap", "before")) != 0 {
			t.Fatal("the process could not write")
		}
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		snap := h.takeSnapshot(t, sb)
		if snap.Sandbox != sb.ID() || snap.Version == "" || snap.Created.IsZero() || snap.Spec.Name != "original" {
			t.Errorf("the snapshot is %+v", snap)
		}
		if st := h.getStatus(t, sb); st.State != atoll.StateRunning {
			t.Errorf("the sandbox is %s after the snapshot", st.State)
		}
		if err := p.Signal(h.newContext(t), atoll.SIGCONT); err != nil {
			t.Errorf("Signal: %v; the process should run on", err)
		}
		if h.runForCode(t, sb, scriptCommand("store", "/atoll-snap", "after")) != 0 {
			t.Fatal("the process could not write")
		}
		for range 2 {
			fork := h.createSandbox(t, atoll.Spec{Snapshot: snap.ID})
			if fork.ID() == sb.ID() {
				t.Error("the fork has the id of the original")
			}
			if got := h.runForOutput(t, fork, programCommand("cat", "/atoll-snap")); got != "before" {
				t.Errorf("the fork's file holds %q, want its content at the snapshot", got)
			}
			if h.runForCode(t, fork, scriptCommand("store", "/atoll-snap", "forked")) != 0 {
				t.Error("the process could not write")
			}
		}
		if got := h.runForOutput(t, sb, programCommand("cat", "/atoll-snap")); got != "after" {
			t.Errorf("the original's file holds %q", got)
		}
	}},
	{"a snapshot outlives its sandbox, until it is removed", []need{needSnapshot}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		snap := h.takeSnapshot(t, sb)
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		all, err := atoll.Snapshots(h.newContext(t), h.p)
		if err != nil || len(all) != 1 || all[0].ID != snap.ID || all[0].Provider != h.p.Info().Name || snap.Provider != all[0].Provider {
			t.Errorf("Snapshots = %+v, %v; want only the snapshot of this provider: %+v", all, err, snap)
		}
		fork := h.createSandbox(t, atoll.Spec{Snapshot: snap.ID})
		h.runForOutput(t, fork, programCommand("echo", "works"))
		if err := atoll.RemoveSnapshot(h.newContext(t), h.p, snap.ID); err != nil {
			t.Fatalf("RemoveSnapshot: %v", err)
		}
		h.runForOutput(t, fork, programCommand("echo", "still works"))
		wantKind(t, "RemoveSnapshot again", atoll.RemoveSnapshot(h.newContext(t), h.p, snap.ID), atoll.ErrNotExist)
		h.wantRefused(t, atoll.Spec{Snapshot: snap.ID}, atoll.ErrNotExist)
	}},
	{"a snapshot of a paused sandbox leaves it paused, or is ErrStopped", []need{needSnapshot, needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if h.p.Info().Caps.Files {
			h.writeFile(t, sb, h.rootFile("f"), "x") // so that the provider has set up its access to files
		}
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		runWithin(t, h.longLimit(), "TakeSnapshot of a paused sandbox", func() {
			snap, err := atoll.TakeSnapshot(h.newContext(t), sb)
			if err != nil {
				wantKind(t, "TakeSnapshot", err, atoll.ErrStopped, atoll.ErrConflict)
				waitForNoSnapshot(t, h)
			} else if err := atoll.RemoveSnapshot(h.newContext(t), h.p, snap.ID); err != nil {
				t.Errorf("RemoveSnapshot: %v", err)
			}
		})
		if st := h.getStatus(t, sb); st.State != atoll.StatePaused {
			t.Errorf("state is %q after the snapshot, want it paused still", st.State)
		}
		if err := atoll.Resume(h.newContext(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		h.runForOutput(t, sb, programCommand("echo", "again"))
	}},
	{"a TakeSnapshot whose context ends at any moment takes one or leaves nothing", []need{needSnapshot}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		begin := time.Now()
		if err := atoll.RemoveSnapshot(h.newContext(t), h.p, h.takeSnapshot(t, sb).ID); err != nil {
			t.Fatalf("RemoveSnapshot: %v", err)
		}
		took := time.Since(begin)
		for i := range 8 {
			ctx, cancel := context.WithTimeout(h.newContext(t), took*time.Duration(i)/6)
			snap, err := atoll.TakeSnapshot(ctx, sb)
			cancel()
			if err == nil {
				if err := atoll.RemoveSnapshot(h.newContext(t), h.p, snap.ID); err != nil {
					t.Errorf("RemoveSnapshot: %v", err)
				}
			} else {
				wantCtx(t, "TakeSnapshot", err, context.DeadlineExceeded)
			}
			waitForNoSnapshot(t, h)
			h.runForOutput(t, sb, programCommand("echo", "works"))
		}
	}},
	{"TakeSnapshot succeeds while files are in use", []need{needSnapshot, needFiles}, func(t *testing.T, h *harness) {
		sb, name, data := h.plainSandbox(t), h.rootFile("big"), patternBytes(16<<20)
		if err := atoll.WriteFile(h.newContext(t), sb, name, data, 0); err != nil {
			t.Fatalf("WriteFile: %v", err)
		}
		r, _, err := atoll.Files(sb).Read(h.newContext(t), name, 0)
		if err != nil {
			t.Fatalf("Read: %v", err)
		}
		defer r.Close()
		half := make([]byte, 1<<20)
		if _, err := io.ReadFull(r, half); err != nil {
			t.Fatalf("Read: %v", err)
		}
		_, scr := h.startReady(t, sb, scriptCommand("drip"))
		snap := h.takeSnapshot(t, sb)
		more := len(scr.readText())
		scr.waitUntil(t, h, "new lines after the snapshot", func(text string) bool { return len(text) > more })
		// The snapshot may cut off the read, but not change the data.
		if rest, err := io.ReadAll(r); err == nil && !bytes.Equal(append(half, rest...), data) {
			t.Errorf("the file that was being read came as %s", describeDiff(append(half, rest...), data))
		}
		all := []atoll.Sandbox{sb}
		if !seesHost(h.p.Info()) { // without isolation the file is on a volume, which the snapshot omits
			all = append(all, h.createSandbox(t, atoll.Spec{Snapshot: snap.ID}))
		}
		for _, sb := range all {
			got, err := atoll.ReadFile(h.newContext(t), sb, name)
			if d := describeDiff(got, data); err != nil || d != "" {
				t.Errorf("the file is %s, %v", d, err)
			}
		}
	}},
	{"a durable process continues in sandboxes from a snapshot, under its id", []need{needDurableCmd}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		drip, cat := scriptCommand("drip"), programCommand("cat")
		drip.Durable, cat.Durable, cat.OpenStdin = true, true, true
		p, scr := h.startReady(t, sb, drip)
		q := h.startProcess(t, sb, cat)
		h.echoThrough(t, q, "before\n")
		plain, _ := h.startReady(t, sb, scriptCommand("ready"))
		snap := h.takeSnapshot(t, sb)
		for range 2 {
			fork := h.createSandbox(t, atoll.Spec{Snapshot: snap.ID})
			if _, err := fork.Process(h.newContext(t), plain.ID()); atoll.KindOf(err) != atoll.ErrNotExist {
				t.Errorf("Process of one that is not durable: %v, want ErrNotExist", err)
			}
			again, err := fork.Process(h.newContext(t), q.ID())
			if err != nil {
				t.Fatalf("Process: %v", err)
			}
			h.echoThrough(t, again, "after\n")
			again, err = fork.Process(h.newContext(t), p.ID())
			if err != nil {
				t.Fatalf("Process: %v", err)
			}
			numbers := newScreen()
			go again.Attach(h.newContext(t), &atoll.Attachment{Stdout: numbers})
			numbers.waitUntil(t, h, "two further numbers", func(text string) bool { return strings.Count(text, "\n") > 1 })
			var first int
			if _, err := fmt.Sscan(numbers.readText(), &first); err != nil || first < 2 {
				t.Errorf("the process prints %q, want it to count on", numbers.readText())
			}
			h.killProcess(t, again)
		}
		more := len(scr.readText())
		scr.waitUntil(t, h, "new lines of the original", func(text string) bool { return len(text) > more })
		h.echoThrough(t, q, "original\n")
	}},
	{"a durable terminal continues in a sandbox from a snapshot", []need{needDurableCmd, needTTY}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		shell := addTTY(programCommand("sh"))
		shell.Durable, shell.OpenStdin = true, true
		p := h.startProcess(t, sb, shell)
		h.typeAt(t, p, "n=41; tty\r", "/dev/")
		snap := h.takeSnapshot(t, sb)
		fork := h.createSandbox(t, atoll.Spec{Snapshot: snap.ID})
		again, err := fork.Process(h.newContext(t), p.ID())
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		if err := atoll.Resize(h.newContext(t), again, atoll.Size{Rows: 12, Cols: 34}); err != nil {
			t.Errorf("Resize: %v", err)
		}
		h.typeAt(t, again, "echo $((n+1)); stty size\r", "42\r\n12 34\r\n")
		h.typeAt(t, p, "echo $((n+2))\r", "43\r\n")
	}},
	{"a snapshot holds the files of the data volume unless WithoutWork is given, if it says so", []need{needSnapshot, needVolumes}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if h.runForCode(t, sb, scriptCommand("store", "file", "before")) != 0 {
			t.Fatal("the process could not write")
		}
		snap, bare := h.takeSnapshot(t, sb), h.takeSnapshot(t, sb, atoll.WithoutWork())
		if bare.Work {
			t.Error("the snapshot without the data volume has it")
		}
		if h.runForCode(t, sb, scriptCommand("store", "file", "after")) != 0 {
			t.Fatal("the process could not write")
		}
		for _, s := range []atoll.Snapshot{snap, bare} {
			fork := h.createSandbox(t, atoll.Spec{Snapshot: s.ID})
			got := h.runForOutput(t, fork, programCommand("sh", "-c", "cat file 2>/dev/null || echo none"))
			if want := map[bool]string{true: "before", false: "none"}[s.Work]; got != want {
				t.Errorf("the fork's file holds %q, want %q", got, want)
			}
		}
		if got := h.runForOutput(t, sb, programCommand("cat", "file")); got != "after" {
			t.Errorf("the original's file holds %q", got)
		}
	}},
	{"a durable process continues in a sandbox from a snapshot of a paused one", []need{needDurableCmd, needPause}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		cat := programCommand("cat")
		cat.Durable, cat.OpenStdin = true, true
		p := h.startProcess(t, sb, cat)
		h.echoThrough(t, p, "before\n")
		if err := atoll.Pause(h.newContext(t), sb); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		snap := h.takeSnapshot(t, sb)
		fork := h.createSandbox(t, atoll.Spec{Snapshot: snap.ID})
		again, err := fork.Process(h.newContext(t), p.ID())
		if err != nil {
			t.Fatalf("Process: %v", err)
		}
		h.echoThrough(t, again, "after\n")
		if err := atoll.Resume(h.newContext(t), sb); err != nil {
			t.Fatalf("Resume: %v", err)
		}
		h.echoThrough(t, p, "original\n")
	}},
	{"Command.Durable is refused without Caps.DurableExec", nil, func(t *testing.T, h *harness) {
		if h.p.Info().Caps.DurableExec {
			t.Skip("the provider has cap durable_exec")
		}
		cmd := programCommand("true")
		cmd.Durable = true
		_, err := h.plainSandbox(t).Exec(h.newContext(t), cmd)
		wantKind(t, "Exec", err, atoll.ErrUnsupported)
	}},
	{"TakeSnapshot of a stopped sandbox is ErrStopped", []need{needSnapshot}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		_, err := atoll.TakeSnapshot(h.newContext(t), sb)
		wantKind(t, "TakeSnapshot", err, atoll.ErrStopped)
	}},
}

// echoThrough writes text to a process that copies its input, and waits for it.
func (h *harness) echoThrough(t *testing.T, p atoll.Process, text string) {
	t.Helper()
	h.typeAt(t, p, text, text)
}

// typeAt writes text to a process, and waits for the output want.
func (h *harness) typeAt(t *testing.T, p atoll.Process, text, want string) {
	t.Helper()
	ctx, cancel := context.WithCancel(h.newContext(t))
	defer cancel()
	scr := newScreen()
	r, w := newPipe(t)
	go p.Attach(ctx, &atoll.Attachment{Stdin: r, Stdout: scr, StdoutFrom: atoll.FromNow})
	io.WriteString(w, text)
	scr.waitForText(t, h, want)
}

// waitForNoSnapshot waits until there is no snapshot. The cleanup of a cancelled call may take some
// time.
func waitForNoSnapshot(t *testing.T, h *harness) {
	t.Helper()
	err := retryFor(h.shortLimit(), func() error {
		all, err := atoll.Snapshots(h.newContext(t), h.p)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("there are %d snapshots: %+v", len(all), all)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// takeSnapshot takes a snapshot that the end of the subtest removes.
func (h *harness) takeSnapshot(t *testing.T, sb atoll.Sandbox, opts ...atoll.SnapshotOption) atoll.Snapshot {
	t.Helper()
	snap, err := atoll.TakeSnapshot(h.newContext(t), sb, opts...)
	if err != nil {
		t.Fatalf("TakeSnapshot: %v", err)
	}
	t.Cleanup(func() {
		err := atoll.RemoveSnapshot(h.newContext(t), h.p, snap.ID)
		if err != nil && atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("RemoveSnapshot: %v", err)
		}
	})
	return snap
}
