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
)

// A record is the part of a sandbox's record on disk that tests read or forge.
type record map[string]any

func (l *lab) recordPath(sb atoll.Sandbox) string {
	return filepath.Join(l.opts.Dir, "records", sb.ID()+".json")
}

func (l *lab) readRecord(sb atoll.Sandbox) record {
	l.t.Helper()
	data, err := os.ReadFile(l.recordPath(sb))
	l.must("read record", err)
	var r record
	l.must("read record", json.Unmarshal(data, &r))
	return r
}

// supervisorOf returns the PID of the sandbox's supervisor.
func (l *lab) supervisorOf(sb atoll.Sandbox) int {
	l.t.Helper()
	supervisor, _ := l.readRecord(sb)["keeper"].(map[string]any)
	pid, _ := supervisor["pid"].(float64)
	if pid <= 1 {
		l.t.Fatalf("no supervisor in the record: %v", supervisor)
	}
	return int(pid)
}

// awaitGone waits until the processes have ended.
func (l *lab) awaitGone(pids map[string]int) {
	l.t.Helper()
	l.poll(func() error {
		for name, pid := range pids {
			if isRunning(pid) {
				return fmt.Errorf("%s %d is left", name, pid)
			}
		}
		return nil
	})
}

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
			sb := l.create(atoll.Spec{})
			other := l.create(atoll.Spec{})
			l.sh(sb, "echo kept > file; echo lost > /root/file")
			p, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sleep", "1000"}})
			l.must("exec", err)
			for _, sb := range []atoll.Sandbox{sb, other} {
				supervisor := l.supervisorOf(sb)
				pids := children(t, supervisor)
				if pids["runsc-sandbox"] == 0 || pids["runsc-gofer"] == 0 {
					t.Fatalf("processes of the supervisor: %v", pids)
				}
				pids["supervisor"] = supervisor
				l.must("kill", unix.Kill(pids[tt.victim], unix.SIGKILL))
				st := l.awaitState(sb, atoll.StateFailed)
				if !strings.Contains(st.Reason, tt.reason) || st.Ready {
					t.Errorf("ready %v, reason %q", st.Ready, st.Reason)
				}
				l.awaitGone(pids)
			}
			_, err = p.Wait(l.ctx())
			wantKind(t, "wait", err, atoll.ErrStopped)
			_, err = sb.Exec(l.ctx(), &atoll.Command{Args: []string{"true"}})
			wantKind(t, "exec", err, atoll.ErrStopped, "failed")
			if got, err := atoll.ReadFile(l.ctx(), sb, "file"); string(got) != "kept\n" || err != nil {
				t.Errorf("file of the failed sandbox: %q, %v", got, err)
			}
			l.must("start", sb.Start(l.ctx()))
			if got := l.sh(sb, "cat file; ls /root"); got != "kept" {
				t.Errorf("after start: %q", got)
			}
			l.remove(other)
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
			sb := l.create(atoll.Spec{NoStart: true})
			r := l.readRecord(sb)
			r["status"].(map[string]any)["state"] = "running"
			r["keeper"] = map[string]any{"pid": stranger.Process.Pid, "start": "1", "boot": tt.boot}
			data, err := json.Marshal(r)
			l.must("marshal", err)
			l.must("forge", os.WriteFile(l.recordPath(sb), data, 0o600))
			if st := l.status(sb); st.State != atoll.StateFailed || !strings.Contains(st.Reason, tt.reason) {
				t.Errorf("state %s, reason %q", st.State, st.Reason)
			}
			l.must("stop", sb.Stop(l.ctx(), 0))
			l.must("start", sb.Start(l.ctx()))
			l.remove(sb)
			if !isRunning(stranger.Process.Pid) {
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
	sb := l.create(atoll.Spec{Resources: atoll.Resources{Memory: 128 << 20}})
	l.sh(sb, "echo kept > /root/file; sleep 1000 >/dev/null 2>&1 &")
	for _, script := range []string{
		"head -c 1000000000 /dev/zero | tail",
		"for i in 1 2 3 4 5 6; do head -c 1000000000 /dev/zero | tail & done; wait; exit 137", // the sum is too much
	} {
		p, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", script}})
		l.must("exec", err)
		exit, err := p.Wait(l.ctx())
		l.must("wait", err)
		if want := "out of memory: the sandbox used more than 128m, and tail (process "; exit.Code != 137 || !strings.HasPrefix(exit.Reason, want) {
			t.Errorf("exit is %+v, want code 137 and the reason %q", exit, want)
		}
	}
	if got := l.sh(sb, "cat /root/file; ps -e | grep -c sleep"); got != "kept\n1" {
		t.Errorf("afterwards: %q", got)
	}
	p, err := sb.Exec(l.ctx(), &atoll.Command{Args: []string{"sh", "-c", "exec cat /dev/zero > /dev/file"}})
	l.must("exec", err)
	if exit, err := p.Wait(l.ctx()); err != nil || !strings.Contains(exit.Reason, "most of it not for processes, and cat (") {
		t.Errorf("files in memory: %+v, %v", exit, err)
	}
	l.sh(sb, "rm /dev/file")
	p, err = sb.Exec(l.ctx(), &atoll.Command{Args: []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=4G", "count=1"}})
	l.must("exec", err)
	if exit, err := p.Wait(l.ctx()); err == nil && exit.Success() {
		t.Errorf("4 GiB fit into 128 MiB: %+v", exit)
	}
	st := l.awaitState(sb, atoll.StateFailed)
	if !strings.HasPrefix(st.Reason, "out of memory") || !strings.Contains(st.Reason, "128m") {
		t.Errorf("reason %q", st.Reason)
	}
	l.must("start", sb.Start(l.ctx()))
	l.sh(sb, "true")
}

// The disk limit holds inside, where the disk is then full, and bounds the space that the
// sandbox takes on the host.
func TestDiskLimit(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{Resources: atoll.Resources{Disk: 32 << 20}})
	for _, dir := range []string{"/root", "/tmp", "/usr", "/var/lib"} {
		out := l.failSh(sb, "head -c 50000000 /dev/zero > "+dir+"/big")
		if !strings.Contains(out, "No space left") {
			t.Errorf("in %s: %s", dir, out)
		}
		l.sh(sb, "rm "+dir+"/big; echo small > "+dir+"/small")
	}
	l.failSh(sb, "head -c 50000000 /dev/zero > /root/big")
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
	l.must("stop", sb.Stop(l.ctx(), 0))
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /usr/small; rm /root/big; cat /root/small"); got != "small\nsmall" {
		t.Errorf("after stop and start with a full disk: %q", got)
	}
}

// A sandbox expires without any provider: its supervisor removes it while it runs, and the
// next provider when it does not.
func TestTimeEndsWithoutProvider(t *testing.T) {
	l := newLab(t)
	ttl := atoll.Duration(testenv.Scale(3 * time.Second)) // in which one is made and stopped
	expiring, err := l.Create(l.ctx(), &atoll.Spec{TTL: ttl})
	l.must("create", err)
	stopped, err := l.Create(l.ctx(), &atoll.Spec{TTL: ttl})
	l.must("create", err)
	if err := stopped.Stop(l.ctx(), 0); atoll.KindOf(err) != atoll.ErrNotFound { // on a busy machine it may have expired
		l.must("stop", err)
	}
	ids := []atoll.Sandbox{expiring}
	if !testing.Short() { // takes AutoRemoveDelay
		once, err := l.Create(l.ctx(), &atoll.Spec{Cmd: []string{"true"}, AutoRemove: true})
		l.must("create", err)
		ids = append(ids, once)
	}
	l.must("close", l.Close())
	for _, sb := range ids {
		l.poll(func() error {
			if _, err := os.Stat(l.recordPath(sb)); err == nil {
				return fmt.Errorf("%s is there", sb.ID())
			}
			return nil
		})
	}
	again := openLab(t, l.opts)
	again.poll(func() error {
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
	sb := l.create(atoll.Spec{})
	l.sh(sb, "echo before > /root/file")
	for _, replace := range []func(){func() { l.must("remove", os.Remove(path)) }, install} {
		replace()
		l.sh(sb, "cat /root/file")
		// A guest is the supervisor's own program, started afresh.
		if got, err := atoll.ReadFile(l.ctx(), sb, "/root/file"); string(got) != "before\n" || err != nil {
			t.Errorf("read: %q, %v", got, err)
		}
		l.sh(sb, "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' < $p/cmdline) in atoll-guest*) kill -9 ${p#/proc/};; esac; done")
	}
	supervisor := l.supervisorOf(sb)
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", supervisor)); !strings.HasSuffix(exe, " (deleted)") || err != nil {
		t.Errorf("the supervisor runs %s, %v", exe, err)
	}
	next := l.create(atoll.Spec{})
	for _, sb := range []atoll.Sandbox{sb, next} {
		if sb == next {
			break
		}
		l.must("stop", sb.Stop(l.ctx(), 0))
		l.must("start", sb.Start(l.ctx()))
	}
	for _, sb := range []atoll.Sandbox{sb, next} {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", l.supervisorOf(sb))); exe != path || err != nil {
			t.Errorf("the supervisor runs %s, %v, want %s", exe, err, path)
		}
	}
	if got := l.sh(sb, "cat /root/file"); got != "before" {
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
			states[next.awaitSettled(id)]++
		}
		l.must("close", next.Close())
	}
	t.Logf("states after %d kills: %v", kills, states)
	last := openLab(t, l.opts)
	list, err := last.List(l.ctx(), atoll.Filter{})
	l.must("list", err)
	for _, st := range list {
		sb, err := last.Get(l.ctx(), st.ID)
		l.must("get", err)
		last.remove(sb)
	}
}

// awaitSettled waits until the sandbox is in a lasting state that is its actual one, and
// returns it.
func (l *lab) awaitSettled(id string) (state atoll.State) {
	l.t.Helper()
	l.poll(func() error {
		sb, err := l.Get(l.ctx(), id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			state = atoll.StateRemoved
			return nil
		}
		if err != nil {
			return err
		}
		st, err := sb.Status(l.ctx())
		if err != nil {
			return err
		}
		switch state = st.State; state {
		case atoll.StateRunning:
			return atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"true"}})
		case atoll.StateStopped, atoll.StateFailed:
			if err := sb.Start(l.ctx()); err != nil {
				return err
			}
			return atoll.Run(l.ctx(), sb, &atoll.Command{Args: []string{"true"}})
		}
		return fmt.Errorf("state %s", state)
	})
	return state
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
		l.must("churn", churnSandbox(l.Provider, args[1+i%2]))
	}
	for _, cmd := range others {
		l.must("the other process", cmd.Wait())
	}
	list, err := l.List(l.ctx(), atoll.Filter{})
	l.must("list", err)
	for _, st := range list {
		sb, err := l.Get(l.ctx(), st.ID)
		l.must("get", err)
		l.remove(sb)
	}
}

// A program whose provider was killed continues, and is found again with everything that it
// has printed.
func TestExecSurvivesItsProvider(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "echo one; read x; echo two $x"}, OpenStdin: true, Stdout: w})
	l.must("exec", err)
	if line, err := bufio.NewReader(r).ReadString('\n'); line != "one\n" || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	cancel()
	l.must("close", l.Close())
	again := openLab(t, l.opts)
	sb, err = again.Get(t.Context(), sb.ID())
	l.must("get", err)
	p, err = sb.Process(t.Context(), p.ID())
	l.must("process", err)
	out := newScreen()
	l.must("attach", p.Attach(t.Context(), &atoll.Attachment{Stdin: strings.NewReader("x\n"), Stdout: out}))
	if out.String() != "one\ntwo x\n" {
		t.Errorf("output %q", out)
	}
}
