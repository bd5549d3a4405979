//go:build linux

package gvisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// When one of a sandbox's processes on the host is killed, the sandbox has failed and says
// why, no process of it keeps running, and it can be removed, or started again with its
// work.
func TestKilledFromOutside(t *testing.T) {
	for _, tt := range []struct{ victim, reason string }{
		{"supervisor", "supervisor process died"},
		{"runsc-sandbox", "sentry died"},
	} {
		t.Run(tt.victim, func(t *testing.T) {
			l := newLab(t)
			sb := l.NewSandbox(atoll.Spec{})
			other := l.NewSandbox(atoll.Spec{})
			l.Sh(sb, "echo kept > file; echo lost > /root/file")
			p, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sleep", "1000"}})
			l.Must("exec", err)
			for _, sb := range []atoll.Sandbox{sb, other} {
				supervisor := l.SupervisorOf(sb)
				pids := supervisedtest.Children(t, supervisor)
				if pids["runsc-sandbox"] == 0 || pids["runsc-gofer"] == 0 {
					t.Fatalf("processes of the supervisor: %v", pids)
				}
				pids["supervisor"] = supervisor
				l.Must("kill", unix.Kill(pids[tt.victim], unix.SIGKILL))
				st := l.AwaitState(sb, atoll.StateFailed)
				if !strings.Contains(st.Reason, tt.reason) || st.Ready {
					t.Errorf("ready %v, reason %q", st.Ready, st.Reason)
				}
				l.AwaitGone(pids)
			}
			_, err = p.Wait(l.Context())
			supervisedtest.WantKind(t, "wait", err, atoll.ErrStopped)
			_, err = sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}})
			supervisedtest.WantKind(t, "exec", err, atoll.ErrStopped, "failed")
			if got, err := atoll.ReadFile(l.Context(), sb, "file"); string(got) != "kept\n" || err != nil {
				t.Errorf("file of the failed sandbox: %q, %v", got, err)
			}
			l.Must("start", sb.Start(l.Context()))
			if got := l.Sh(sb, "cat file; ls /root"); got != "kept" {
				t.Errorf("after start: %q", got)
			}
			l.RemoveSandbox(other)
		})
	}
}

// If a record names a process that is not the supervisor any more, after a reboot or
// because its number was reused, that process is left alone.
func TestStrangerWithTheSupervisorsNumber(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, boot, reason string }{
		{"number reused", strings.TrimSpace(string(boot)), "supervisor process died"},
		{"rebooted", "00000000-0000-0000-0000-000000000000", "restarted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stranger := exec.Command("sleep", "1000")
			if err := stranger.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
			l := newLab(t)
			sb := l.NewSandbox(atoll.Spec{NoStart: true})
			r := l.ReadRecord(sb)
			r["status"].(map[string]any)["state"] = "running"
			r["keeper"] = map[string]any{"pid": stranger.Process.Pid, "start": "1", "boot": tt.boot}
			data, err := json.Marshal(r)
			l.Must("marshal", err)
			l.Must("forge", os.WriteFile(l.RecordPath(sb), data, 0o600))
			if st := l.Status(sb); st.State != atoll.StateFailed || !strings.Contains(st.Reason, tt.reason) {
				t.Errorf("state %s, reason %q", st.State, st.Reason)
			}
			l.Must("stop", sb.Stop(l.Context(), 0))
			l.Must("start", sb.Start(l.Context()))
			l.RemoveSandbox(sb)
			if !supervisedtest.IsRunning(stranger.Process.Pid) {
				t.Error("a stranger was killed")
			}
		})
	}
}

// A program that wants more memory than its sandbox may have dies alone, and its exit says why,
// also if a shell has started it. A program that reads too much at once takes the sandbox with it.
func TestOutOfMemory(t *testing.T) {
	testenv.Need(t, testenv.Cgroups)
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 128 << 20}})
	l.Sh(sb, "echo kept > /root/file; sleep 1000 >/dev/null 2>&1 &")
	for _, script := range []string{
		"head -c 1000000000 /dev/zero | tail",
		"for i in 1 2 3 4 5 6; do head -c 1000000000 /dev/zero | tail & done; wait; exit 137", // the sum is too much
	} {
		p, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", script}})
		l.Must("exec", err)
		exit, err := p.Wait(l.Context())
		l.Must("wait", err)
		if want := "out of memory: the sandbox used more than 128m, and tail (process "; exit.Code != 137 || !strings.HasPrefix(exit.Reason, want) {
			t.Errorf("exit is %+v, want code 137 and the reason %q", exit, want)
		}
	}
	if got := l.Sh(sb, "cat /root/file; ps -e | grep -c sleep"); got != "kept\n1" {
		t.Errorf("afterwards: %q", got)
	}
	p, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh", "-c", "exec cat /dev/zero > /dev/file"}})
	l.Must("exec", err)
	if exit, err := p.Wait(l.Context()); err != nil || !strings.Contains(exit.Reason, "most of it not for processes, and cat (") {
		t.Errorf("files in memory: %+v, %v", exit, err)
	}
	l.Sh(sb, "rm /dev/file")
	p, err = sb.Exec(l.Context(), &atoll.Command{Args: []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=4G", "count=1"}})
	l.Must("exec", err)
	if exit, err := p.Wait(l.Context()); err == nil && exit.Success() {
		t.Errorf("4 GiB fit into 128 MiB: %+v", exit)
	}
	st := l.AwaitState(sb, atoll.StateFailed)
	if !strings.HasPrefix(st.Reason, "out of memory") || !strings.Contains(st.Reason, "128m") {
		t.Errorf("reason %q", st.Reason)
	}
	l.Must("start", sb.Start(l.Context()))
	l.Sh(sb, "true")
}

// The disk limit holds inside, where the disk is then full, and bounds the space that the
// sandbox takes on the host.
func TestDiskLimit(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Disk: 32 << 20}})
	for _, dir := range []string{"/root", "/tmp", "/usr", "/var/lib"} {
		out := l.FailSh(sb, "head -c 50000000 /dev/zero > "+dir+"/big")
		if !strings.Contains(out, "No space left") {
			t.Errorf("in %s: %s", dir, out)
		}
		l.Sh(sb, "rm "+dir+"/big; echo small > "+dir+"/small")
	}
	l.FailSh(sb, "head -c 50000000 /dev/zero > /root/big")
	var used int64
	err := filepath.WalkDir(filepath.Join(l.opts.Dir, "sandboxes", sb.ID()), func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			used += st.Blocks * 512
		}
		return nil
	})
	if limit := int64(40 << 20); err != nil || used > limit {
		t.Errorf("takes %d bytes of the host, want %d at most (%v)", used, limit, err)
	}
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /usr/small; rm /root/big; cat /root/small"); got != "small\nsmall" {
		t.Errorf("after stop and start with a full disk: %q", got)
	}
}

// A sandbox expires without any provider: its supervisor removes it while it runs, and the
// next provider when it does not.
func TestTimeEndsWithoutProvider(t *testing.T) {
	l := newLab(t)
	ttl := atoll.Duration(testenv.Scale(3 * time.Second)) // in which one is made and stopped
	expiring, err := l.Create(l.Context(), &atoll.Spec{TTL: ttl})
	l.Must("create", err)
	stopped, err := l.Create(l.Context(), &atoll.Spec{TTL: ttl})
	l.Must("create", err)
	if err := stopped.Stop(l.Context(), 0); atoll.KindOf(err) != atoll.ErrNotFound { // on a busy machine it may have expired
		l.Must("stop", err)
	}
	ids := []atoll.Sandbox{expiring}
	if !testing.Short() { // takes AutoRemoveDelay
		once, err := l.Create(l.Context(), &atoll.Spec{Cmd: []string{"true"}, AutoRemove: true})
		l.Must("create", err)
		ids = append(ids, once)
	}
	l.Must("close", l.Close())
	for _, sb := range ids {
		l.Poll(func() error {
			if _, err := os.Stat(l.RecordPath(sb)); err == nil {
				return fmt.Errorf("%s is there", sb.ID())
			}
			return nil
		})
	}
	again := openLab(t, l.opts)
	again.Poll(func() error {
		if _, err := again.Get(t.Context(), stopped.ID()); atoll.KindOf(err) != atoll.ErrNotFound {
			return fmt.Errorf("the stopped one: %v", err)
		}
		return nil
	})
}

// The program that runs a sandbox can be replaced: running sandboxes keep the old one, and
// new ones use the new one.
func TestUpgrade(t *testing.T) {
	old := helperPath(t)
	if old == "" {
		old = "/proc/self/exe"
	}
	path := filepath.Join(t.TempDir(), "atoll")
	install := func() {
		t.Helper()
		data, err := os.ReadFile(old)
		if err == nil {
			err = os.WriteFile(path+".new", data, 0o755)
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install()
	l := newLab(t, func(o *gvisor.Options) { o.Helper, o.Spare = path, false }) // a spare would be of the previous version
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "echo before > /root/file")
	for _, replace := range []func(){func() { l.Must("remove", os.Remove(path)) }, install} {
		replace()
		l.Sh(sb, "cat /root/file")
		// A guest is the supervisor's own program, started afresh.
		if got, err := atoll.ReadFile(l.Context(), sb, "/root/file"); string(got) != "before\n" || err != nil {
			t.Errorf("read: %q, %v", got, err)
		}
		l.Sh(sb, "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' < $p/cmdline) in atoll-guest*) kill -9 ${p#/proc/};; esac; done")
	}
	supervisor := l.SupervisorOf(sb)
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", supervisor)); !strings.HasSuffix(exe, " (deleted)") || err != nil {
		t.Errorf("the supervisor runs %s, %v", exe, err)
	}
	next := l.NewSandbox(atoll.Spec{})
	for _, sb := range []atoll.Sandbox{sb, next} {
		if sb == next {
			break
		}
		l.Must("stop", sb.Stop(l.Context(), 0))
		l.Must("start", sb.Start(l.Context()))
	}
	for _, sb := range []atoll.Sandbox{sb, next} {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", l.SupervisorOf(sb))); exe != path || err != nil {
			t.Errorf("the supervisor runs %s, %v, want %s", exe, err, path)
		}
	}
	if got := l.Sh(sb, "cat /root/file"); got != "before" {
		t.Errorf("file: %q", got)
	}
}

// A process that dies at any moment of a sandbox's life leaves it in a state from which the
// next one can continue, and leaves nothing behind.
func TestProviderKilledAnywhere(t *testing.T) {
	l := newLab(t)
	ids := []string{atoll.NewID(), atoll.NewID()}
	kills := 40
	if testing.Short() {
		kills = 8
	}
	states := map[atoll.State]int{}
	for i := range kills {
		cmd := l.startProvider("churn", append([]string{"1000"}, ids...)...)
		time.Sleep(time.Duration(20+11*i) * time.Millisecond) // another moment each time
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		next := openLab(t, l.opts)
		for _, id := range ids {
			states[next.AwaitSettled(id)]++
		}
		l.Must("close", next.Close())
	}
	t.Logf("states after %d kills: %v", kills, states)
	openLab(t, l.opts).RemoveAll()
}

// Two processes that create, use and remove the same sandboxes at once get in each other's
// way but do no harm.
func TestTwoProcessesAtOnce(t *testing.T) {
	l := newLab(t)
	rounds := 20
	if testing.Short() {
		rounds = 6
	}
	args := []string{strconv.Itoa(rounds), atoll.NewID(), atoll.NewID()}
	others := []*exec.Cmd{l.startProvider("churn", args...), l.startProvider("churn", args...)}
	for i := range rounds {
		l.Must("churn", supervisedtest.ChurnSandbox(l.Provider, args[1+i%2]))
	}
	for _, cmd := range others {
		l.Must("the other process", cmd.Wait())
	}
	list, err := l.List(l.Context(), atoll.Filter{})
	l.Must("list", err)
	for _, st := range list {
		sb, err := l.Get(l.Context(), st.ID)
		l.Must("get", err)
		l.RemoveSandbox(sb)
	}
}

// A program whose provider was killed continues, and is found again with everything that it
// has printed.
func TestExecSurvivesItsProvider(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "echo one; read x; echo two $x"}, OpenStdin: true, Stdout: w})
	l.Must("exec", err)
	if line, err := bufio.NewReader(r).ReadString('\n'); line != "one\n" || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	cancel()
	l.Must("close", l.Close())
	again := openLab(t, l.opts)
	sb, err = again.Get(t.Context(), sb.ID())
	l.Must("get", err)
	p, err = sb.Process(t.Context(), p.ID())
	l.Must("process", err)
	out := &supervisedtest.Screen{}
	l.Must("attach", p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("x\n"), Stdout: out}))
	if out.String() != "one\ntwo x\n" {
		t.Errorf("output %q", out)
	}
}
