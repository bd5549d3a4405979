//go:build linux

package docker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// startOwnEngine starts an engine for one test. It returns the address, and a function that
// kills the engine and waits until it has been started again.
func startOwnEngine(t *testing.T, args ...string) (host string, kill func()) {
	t.Helper()
	needEngine(t) // for the guest, and to skip this test with the others
	d, err := newDaemon()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.End(); err != nil {
			t.Error(err)
		}
	})
	err = d.Dockerd(args...)
	if err == nil {
		err = d.loadBusybox(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d.Host, func() {
		t.Helper()
		pid := findDockerd(t, d.Pid)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of the engine", func() error {
			if err := syscall.Kill(pid, 0); err == nil {
				return errors.New("it is still running")
			}
			return nil
		})
		if err := d.Await(); err != nil {
			t.Fatal(err)
		}
	}
}

// findDockerd returns the PID of the dockerd among the children of a shell.
func findDockerd(t *testing.T, shell int) int {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", shell, shell))
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(children)) {
		name, _ := os.ReadFile("/proc/" + field + "/comm")
		if pid, err := strconv.Atoi(field); err == nil && string(name) == "dockerd\n" {
			return pid
		}
	}
	t.Fatalf("no dockerd among %q", children)
	return 0
}

// eventually waits until ok returns nil.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(testenv.Scale(time.Minute))
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(pause)
	}
}

// awaitPrinted waits until the process has printed the text to stdout.
func awaitPrinted(t *testing.T, process atoll.Process, text string) {
	t.Helper()
	eventually(t, "the output of the process", func() error {
		var out strings.Builder
		err := process.Attach(t.Context(), &atoll.Attachment{Stdout: &out, NoFollow: true})
		if err == nil && !strings.Contains(out.String(), text) {
			err = fmt.Errorf("it is %q, want %q in it", out.String(), text)
		}
		return err
	})
}

// watchUntil watches until ok returns true for a sandbox's status. Like other users of Watch, it
// watches again after ErrUnavailable.
func watchUntil(ctx context.Context, p atoll.Provider, ok func(atoll.Status) bool) error {
	for {
		var last error
		for ev, err := range p.Watch(ctx) {
			if err != nil {
				last = err
				break
			}
			if ev.Type == atoll.EventState && ok(ev.Status) {
				return nil
			}
		}
		if atoll.KindOf(last) != atoll.ErrUnavailable {
			return last
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// If the engine is killed and started again, the provider goes on working. It reports what
// happened to the sandbox, to a command in it, and to the main process.
func TestEngineRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: each case starts an engine")
	}
	for _, tt := range []struct {
		name     string
		args     []string
		change   func(*docker.Options)
		survives bool
	}{
		{"guest", nil, func(*docker.Options) {}, false},
		{"guest, live restore", []string{"--live-restore"}, func(*docker.Options) {}, true},
		{"plain", nil, withoutGuest, false},
		{"plain, live restore", []string{"--live-restore"}, withoutGuest, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, kill := startOwnEngine(t, tt.args...)
			p := open(t, tt.change, func(opts *docker.Options) { opts.Host = host })
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(2*time.Minute))
			defer cancel()
			sb, err := p.Create(ctx, &atoll.Spec{Cmd: []string{"sh", "-c", "echo begun; exec sleep 1000"}})
			if err != nil {
				t.Fatal(err)
			}
			running, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			seen := make(chan error, 1)
			go func() {
				seen <- watchUntil(ctx, p, func(st atoll.Status) bool {
					return st.ID == sb.ID() && (st.State == atoll.StateStopped || st.State == atoll.StateFailed)
				})
			}()
			before, err := sb.Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			kill()
			if tt.survives {
				checkSurvived(t, ctx, sb, before)
				if err := sb.Stop(ctx, 0); err != nil {
					t.Errorf("Stop: %v", err)
				}
			}
			eventually(t, "the sandbox's end", func() error {
				st, err := sb.Status(ctx)
				if err == nil && st.State != atoll.StateStopped && st.State != atoll.StateFailed {
					err = fmt.Errorf("it is %s", st.State)
				}
				return err
			})
			if err := <-seen; err != nil {
				t.Errorf("Watch until the end: %v", err)
			}
			if exit, err := running.Wait(ctx); err == nil && exit.Code != 137 {
				t.Errorf("the command exited with %+v", exit)
			} else if err != nil && atoll.KindOf(err) != atoll.ErrStopped {
				t.Errorf("Wait: %v", err)
			}
			if err := sb.Start(ctx); err != nil {
				t.Fatalf("Start: %v", err)
			}
			if out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"echo", "again"}}); err != nil || string(out) != "again\n" {
				t.Errorf("after the restart: %q, %v", out, err)
			}
			if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
	}
}

// checkSurvived checks a sandbox that outlived its engine.
func checkSurvived(t *testing.T, ctx context.Context, sb atoll.Sandbox, before atoll.Status) {
	t.Helper()
	st, err := sb.Status(ctx)
	if err != nil || st.State != atoll.StateRunning || !st.Started.Equal(before.Started) {
		t.Fatalf("the status is %+v, %v; before, it was %+v", st, err, before)
	}
	eventually(t, "a command in the sandbox", func() error {
		out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"echo", "works"}})
		if err == nil && string(out) != "works\n" {
			err = fmt.Errorf("it printed %q", out)
		}
		return err
	})
}
