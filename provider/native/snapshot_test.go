//go:build linux

package native_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A snapshot has all changes of the root file system: new, changed and removed files, and directories in the place of others.
func TestSnapshotOfChanges(t *testing.T) {
	l := newLab(t)
	needSnapshots(l)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, `echo new > /etc/new; echo changed > /etc/hostname.bak; rm /etc/passwd; rm -f /usr/local/bin/none
mkdir -p /opt/tree/closed; echo deep > /opt/tree/closed/file; ln /opt/tree/closed/file /opt/tree/name; chmod 0 /opt/tree/closed
rm -r /etc/ssl; mkdir /etc/ssl; echo only > /etc/ssl/mine; echo work > /work/file; ln -s /nowhere /root/link`)
	if os.Geteuid() == 0 {
		l.Sh(sb, "chown 1234:5678 /opt/tree/name; cp /usr/bin/env /usr/bin/env.new; mv /usr/bin/env.new /usr/bin/env")
	}
	describe := `cd /; cat etc/new; ls etc/passwd 2>&1 | sed 's/.*: //'; ls -A etc/ssl; stat -c '%a %u %g %h %n' opt/tree/* etc/new; cat opt/tree/closed/file
cat work/file 2>&1; readlink root/link; find usr/bin -name 'env*'; ls usr/bin | wc -l`
	want := l.Sh(sb, describe)
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	l.Sh(sb, "rm -r /etc/new /opt/tree; echo later > /work/file")
	fork := l.NewSandbox(atoll.Spec{Snapshot: snap.ID})
	for range 2 {
		if got := l.Sh(fork, describe); got != want {
			t.Errorf("the fork has\n%s\nwant\n%s", got, want)
		}
		l.Must("stop", fork.Stop(l.Context(), 0))
		l.Must("start", fork.Start(l.Context()))
	}
	l.Sh(fork, "rm -r /opt/tree /etc/ssl; echo fork > /etc/new")
	second := l.NewSandbox(atoll.Spec{Snapshot: snap.ID})
	if got := l.Sh(second, describe); got != want {
		t.Errorf("a second fork has\n%s\nwant\n%s", got, want)
	}
	_, err = l.Create(l.Context(), &atoll.Spec{Snapshot: snap.ID, ReadOnlyRoot: true})
	supervisedtest.WantKind(t, "another read_only_root", err, atoll.ErrInvalid, "read_only_root")
	l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l.Provider, snap.ID))
	l.Must("stop", fork.Stop(l.Context(), 0))
	l.Must("start without the snapshot", fork.Start(l.Context()))
}

// needSnapshots skips the test where processes cannot be frozen.
func needSnapshots(l *lab) {
	l.T.Helper()
	if !l.Info().Caps.Snapshot {
		testenv.Need(l.T, testenv.Cgroups)
		l.T.Skip("an ordinary user has no writable cgroup here")
	}
}

// Calls that come while a snapshot is being taken wait for its end, also Stop; a paused sandbox stays paused.
func TestCallsDuringSnapshot(t *testing.T) {
	l := newLab(t)
	needSnapshots(l)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "i=0; while [ $i -lt 3000 ]; do echo $i > /opt/$i; i=$((i+1)); done; head -c 50000000 /dev/urandom > /opt/big")
	take := func() <-chan error {
		return supervisedtest.RunAsync(func() error { _, err := atoll.TakeSnapshot(l.Context(), sb); return err })
	}
	done := take()
	for range 20 {
		if got := l.Sh(sb, "echo $((1+1))"); got != "2" {
			t.Errorf("a command printed %q", got)
		}
	}
	l.Must("snapshot", <-done)
	l.Must("pause", atoll.Pause(l.Context(), sb))
	done = take()
	time.Sleep(5 * time.Millisecond)
	l.Must("resume", atoll.Resume(l.Context(), sb))
	l.Must("snapshot", <-done)
	if got := l.Sh(sb, "echo runs"); got != "runs" {
		t.Errorf("a command printed %q", got)
	}
	done = take()
	time.Sleep(5 * time.Millisecond)
	l.Must("stop", sb.Stop(l.Context(), 0))
	if err := <-done; err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		t.Errorf("snapshot during a stop: %v", err)
	}
	all, err := atoll.Snapshots(l.Context(), l.Provider)
	l.Must("list", err)
	for _, snap := range all {
		fork := l.NewSandbox(atoll.Spec{Snapshot: snap.ID})
		if got := l.Sh(fork, "ls /opt | wc -l; cat /opt/2999"); strings.TrimSpace(got) != "3001\n2999" {
			t.Errorf("snapshot %s has %q", snap.ID, got)
		}
		l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l.Provider, snap.ID))
	}
}

// A sandbox that ends while a snapshot is taken, whether by the end of its supervisor or of its first process, leaves nothing of that.
func TestSnapshotCutShort(t *testing.T) {
	for name, find := range map[string]func(l *lab, sb atoll.Sandbox) int{
		"supervisor": func(l *lab, sb atoll.Sandbox) int { return l.SupervisorOf(sb) },
		"first process": func(l *lab, sb atoll.Sandbox) int {
			return supervisedtest.Children(l.T, l.SupervisorOf(sb))["atoll-init"]
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			needSnapshots(l)
			sb := l.NewSandbox(atoll.Spec{})
			l.Sh(sb, "head -c 300000000 /dev/zero | tr '\\0' x > /opt/big")
			victim := find(l, sb)
			done := supervisedtest.RunAsync(func() error { _, err := atoll.TakeSnapshot(l.Context(), sb); return err })
			time.Sleep(10 * time.Millisecond)
			l.kill(victim)
			if err := <-done; err == nil {
				t.Log("the snapshot was complete before")
			} else {
				supervisedtest.WantKind(t, "snapshot", err, atoll.ErrStopped)
			}
			l.AwaitState(sb, atoll.StateFailed)
			l.Must("start", sb.Start(l.Context()))
			if got := l.Sh(sb, "wc -c < /opt/big"); strings.TrimSpace(got) != "300000000" {
				t.Errorf("the file has %s bytes", got)
			}
			all, err := atoll.Snapshots(l.Context(), l.Provider)
			l.Must("list", err)
			for _, snap := range all {
				l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l.Provider, snap.ID))
			}
		})
	}
}
