//go:build linux

package gvisor_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// newStockLab opens a provider with booted sandboxes.
func newStockLab(t *testing.T, name string) *lab {
	l := newLab(t, func(o *gvisor.Options) { o.Stock, o.Cgroup = 2, o.Cgroup+name })
	l.awaitStock()
	return l
}

// awaitStock waits until the provider has as many booted sandboxes as it wants.
func (l *lab) awaitStock() {
	l.T.Helper()
	l.Poll(func() error {
		if st := l.Stock(); st.Ready != st.Want || st.Ready == 0 {
			return fmt.Errorf("%d of %d are booted: %s", st.Ready, st.Want, st.Problem)
		}
		return nil
	})
}

// A sandbox that has booted ahead of need gets all of a spec that does not concern its boot.
func TestStock(t *testing.T) {
	l := newStockLab(t, "stock-")
	long := strings.Repeat("n", 65)
	script := `hostname; cat /etc/hostname; getent hosts $HOSTNAME; pwd; id -u; stat -c %u . /work; echo "$A"; cat /sys/fs/cgroup/*/pids.max`
	for _, one := range []struct {
		spec atoll.Spec
		want string
	}{
		{atoll.Spec{Name: "web_1", Project: "p", Env: []string{"A=b"}, Workdir: "/srv/x", User: "33:44"},
			"web-1\nweb-1\n127.0.0.1       localhost web-1\n/srv/x\n33\n33\n33\nb\n1048"},
		{atoll.Spec{ID: "0123456789abcdef0123456789abcdef", TTL: atoll.Duration(time.Hour)},
			"0123456789ab\n0123456789ab\n127.0.0.1       localhost 0123456789ab\n/work\n0\n0\n0\n\n1048"},
		{atoll.Spec{Name: long, Labels: map[string]string{"a": "b"}, IdleStop: atoll.Duration(time.Hour), Image: "host"},
			long[:64] + "\n" + long[:64] + "\n127.0.0.1       localhost " + long[:64] + "\n/work\n0\n0\n0\n\n1048"},
	} {
		l.awaitStock()
		before := l.Stock()
		sb := l.NewSandbox(one.spec)
		if after := l.Stock(); after.Hits != before.Hits+1 {
			t.Errorf("%+v: got %+v, want a hit", one.spec, after)
		}
		if got := l.Sh(sb, script); got != one.want {
			t.Errorf("%+v:\n%s\nwant\n%s", one.spec, got, one.want)
		}
		if all, err := atoll.Processes(l.Context(), sb); err != nil || len(all) != 1 {
			t.Errorf("processes: %+v, %v, want only that of the test", all, err)
		}
		st, want := l.Status(sb), one.spec.WithDefaults()
		if st.Spec.Name != want.Name || st.Spec.Project != want.Project || st.Spec.TTL != want.TTL || st.Expires.IsZero() != (want.TTL == 0) || st.Spec.IdleStop != want.IdleStop || st.State != atoll.StateRunning {
			t.Errorf("got %+v, want the spec %+v", st, want)
		}
		l.Must("write", atoll.WriteFile(l.Context(), sb, "/work/file", []byte("text"), 0))
		l.Must("stop", sb.Stop(l.Context(), 0))
		l.Must("start", sb.Start(l.Context()))
		if got := l.Sh(sb, "cat /work/file; echo; hostname"); got != "text\n"+strings.SplitN(one.want, "\n", 2)[0] {
			t.Errorf("after a restart: %s", got)
		}
	}
	l.awaitStock()
	first := l.NewSandbox(atoll.Spec{Name: "first"})
	snap, err := atoll.TakeSnapshot(l.Context(), first)
	l.Must("snapshot", err)
	if got := l.Sh(l.NewSandbox(atoll.Spec{Name: "second", Snapshot: snap.ID}), "hostname; cat /etc/hostname"); got != "second\nsecond" {
		t.Errorf("the hostname of a sandbox from its snapshot: %s", got)
	}
	l.Must("remove the snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
	l.awaitStock()
	sb := l.NewSandbox(atoll.Spec{Cmd: []string{"sh", "-c", "echo $A; exit 3"}, Env: []string{"A=main"}})
	if st := l.AwaitState(sb, atoll.StateFailed); st.Exit == nil || st.Exit.Code != 3 {
		t.Errorf("the main process: %+v", st)
	}
}

// The stock learns limits that are asked for more than once.
func TestStockOfLimits(t *testing.T) {
	l := newStockLab(t, "stock-limits-")
	spec := atoll.Spec{Resources: atoll.Resources{Memory: 256 << 20, Processes: 77, Disk: 64 << 20}}
	for _, want := range []atoll.Stock{{Unmatched: 1}, {Unmatched: 1, Misses: 1}, {Unmatched: 1, Misses: 1, Hits: 1}} {
		sb := l.NewSandbox(spec)
		if st := l.Stock(); st.Hits != want.Hits || st.Misses != want.Misses || st.Unmatched != want.Unmatched {
			t.Errorf("got %+v, want %+v", st, want)
		}
		const script = `free -m | awk '/^Mem/{print $2}'; awk '/Max processes/{print $3}' /proc/self/limits; df -m / | awk 'END{print $2}'; cat /sys/fs/cgroup/*/memory.max`
		if got := l.Sh(sb, script); got != "256\n77\n64\n268435456" {
			t.Errorf("limits inside: %q", got)
		}
		l.RemoveSandbox(sb)
		l.awaitStock()
	}
	before := l.Stock()
	l.NewSandbox(atoll.Spec{})
	if st := l.Stock(); st.Hits != before.Hits+1 {
		t.Errorf("the default limits: %+v, before %+v", st, before)
	}
}

// A Create that fails returns what it took, or leaves nothing of it.
func TestStockAfterFailures(t *testing.T) {
	l := newStockLab(t, "stock-fail-")
	sb := l.NewSandbox(atoll.Spec{Name: "taken"})
	l.awaitStock()
	before := l.Stock()
	for name, spec := range map[string]atoll.Spec{
		"its id":       {ID: sb.ID()},
		"its name":     {Name: "taken"},
		"a wrong user": {User: "nobody-has-this-name"},
		"a wrong dir":  {Workdir: "/proc/x"},
		"no program":   {Cmd: []string{"/no/such/program"}},
	} {
		l.awaitStock()
		if _, err := l.Create(l.Context(), &spec); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	l.awaitStock()
	if st := l.Stock(); st.Misses != before.Misses {
		t.Errorf("got %+v, before %+v: want no misses", st, before)
	}
	if all, err := l.List(l.Context(), atoll.Filter{}); err != nil || len(all) != 1 {
		t.Errorf("listed: %+v, %v", all, err)
	}
	// The data volume of a removed sandbox is for the next one with its id, which has to boot with it.
	l.Must("write", atoll.WriteFile(l.Context(), sb, "/work/file", []byte("text"), 0))
	l.Must("remove", sb.Remove(l.Context()))
	again := l.NewSandbox(atoll.Spec{ID: sb.ID()})
	if got := l.Sh(again, "cat /work/file"); got != "text" {
		t.Errorf("the file has %q", got)
	}
}

// A booted sandbox that dies does not fail a Create.
func TestStockThatDied(t *testing.T) {
	l := newStockLab(t, "stock-dead-")
	live := l.liveProcesses()
	for pid := range live {
		_ = unix.Kill(pid, unix.SIGKILL) // some end with others
	}
	l.Poll(func() error {
		if left := l.liveProcesses(); len(left) > 0 {
			return fmt.Errorf("live: %v", left)
		}
		return nil
	})
	if len(live) < 3 {
		t.Errorf("only %v lived", live)
	}
	sb := l.NewSandbox(atoll.Spec{Name: "next"})
	if got := l.Sh(sb, "hostname"); got != "next" {
		t.Errorf("the hostname is %q", got)
	}

	// Nor does one whose sentry dies while the Create takes it.
	for i := range 3 {
		l.awaitStock()
		for pid, args := range l.liveProcesses() {
			if strings.HasPrefix(args, "runsc-sandbox") {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		name := fmt.Sprint("next", i)
		sb := l.NewSandbox(atoll.Spec{Name: name})
		if got := l.Sh(sb, "hostname"); got != name {
			t.Errorf("the hostname is %q, want %q", got, name)
		}
	}
}

// Many callers at once get the booted sandboxes and boot the rest, each its own.
func TestStockForMany(t *testing.T) {
	l := newStockLab(t, "stock-many-")
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			sb, err := l.Create(l.Context(), &atoll.Spec{Name: fmt.Sprint("n", i)})
			if err != nil {
				t.Error(err)
				return
			}
			defer l.RemoveSandbox(sb)
			if out, err := atoll.Output(l.Context(), sb, &atoll.Command{Args: []string{"hostname"}}); string(out) != fmt.Sprintf("n%d\n", i) {
				t.Errorf("the hostname of n%d is %q, %v", i, out, err)
			}
		})
	}
	all.Wait()
	if st := l.Stock(); st.Hits == 0 || st.Hits+st.Misses != 6 || st.Want != 2 {
		t.Errorf("got %+v", st)
	}
}
