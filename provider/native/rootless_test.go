//go:build linux

package native_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// asUser is the list of tests that an ordinary user runs as well.
const asUser = "^(TestAsUser|TestConformanceAsUser|TestHostIsOutOfSight|TestMounts|TestRights|TestSystemCalls|TestFirstProcess|TestRootInsideIsPowerless|TestSpy|TestStoppedBeforeExecution|TestReadOnlyMount|TestRestOfAnOverlay|TestKilledFromOutside|TestTwoProcessesAtOnce|TestUptime|TestTerminalKeys|TestProbe|TestSnapshotOfChanges|TestHelperThatCannotServe)$"

// TestRootless runs the most important of these tests as an ordinary user.
func TestRootless(t *testing.T) {
	needNative(t)
	hostile := filepath.Join(t.TempDir(), "hostile")
	if err := providertest.BuildHostile(hostile); err != nil {
		t.Fatal(err)
	}
	supervisedtest.RunAsUser(t, asUser, map[string]string{engineVar: helperPath(t), providertest.HostileVar: hostile})
}

// TestConformanceAsUser runs the part of the suite that depends most on the rights of the provider.
func TestConformanceAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this is root, for whom TestConformance runs all of the suite")
	}
	needNative(t)
	providertest.Run(t, openProvider, append(suiteOptions(), sharedGroups, providertest.Only("exec", "tty", "files", "volumes", "restart", "escape"))...)
}

// An ordinary user's sandboxes can do what the user can, and their Caps tell the rest.
func TestAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this is root")
	}
	l := newLab(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/shared"}}})
	if got := l.Sh(sb, "id -u; cat /shared/file; echo new > /shared/new; echo work > /work/file"); got != "0\nmine" {
		t.Errorf("inside: %q", got)
	}
	for _, path := range []string{filepath.Join(dir, "new"), l.VolumePath(sb, "file")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
			t.Errorf("%s belongs to %d", path, uid)
		}
	}
	// Programs can be installed beside those of the machine, also over a stop.
	l.Sh(sb, "for d in /usr/local/bin /usr/lib /opt /etc; do echo x > $d/new || exit; done; rm -f /usr/bin/env")
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /usr/local/bin/new /usr/lib/new /opt/new /etc/new | tr -d '\\n'; ls /usr/bin/env 2>/dev/null || true"); got != "xxxx" {
		t.Errorf("after stop and start: %q", got)
	}
	caps := l.Info().Caps
	if caps.Users {
		t.Error("Caps.Users")
	}
	_, err := l.Create(l.Context(), &atoll.Spec{User: "1000"})
	supervisedtest.WantKind(t, "user", err, atoll.ErrUnsupported, "root")
	_, err = sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}, User: "1000"})
	supervisedtest.WantKind(t, "exec as another user", err, atoll.ErrUnsupported, "root")
	if !caps.MemoryLimit {
		_, err := l.Create(l.Context(), &atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30}})
		supervisedtest.WantKind(t, "memory limit", err, atoll.ErrUnsupported, "memory")
	}
	if !caps.CPULimit {
		_, err := l.Create(l.Context(), &atoll.Spec{Resources: atoll.Resources{CPUs: 1}})
		supervisedtest.WantKind(t, "CPU limit", err, atoll.ErrUnsupported, "CPU")
	}
	if !caps.Pause {
		supervisedtest.WantKind(t, "pause", atoll.Pause(l.Context(), sb), atoll.ErrUnsupported)
	}
	_, err = l.Create(l.Context(), &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/etc/shadow", Target: "/x"}}})
	supervisedtest.WantKind(t, "a file of root's", err, atoll.ErrDenied, "/etc/shadow")
}
