//go:build linux

package native_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised"
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

// TestSubordinates runs tests as an ordinary user with subordinate ids.
func TestSubordinates(t *testing.T) {
	needNative(t)
	hostile := filepath.Join(t.TempDir(), "hostile")
	if err := providertest.BuildHostile(hostile); err != nil {
		t.Fatal(err)
	}
	const tests = "^(TestSeveralUsers|TestConformanceAsUser|TestRights|TestProbe)$"
	supervisedtest.RunWithSubordinates(t, tests, map[string]string{engineVar: helperPath(t), providertest.HostileVar: hostile})
}

// A user with subordinate ids has sandboxes with several users. Their files go with the sandbox, and with the volume.
func TestSeveralUsers(t *testing.T) {
	l := newLab(t)
	if os.Geteuid() == 0 || !detectsSubordinates() {
		t.Skip("this is not an ordinary user with subordinate ids")
	}
	sb := l.NewSandbox(atoll.Spec{User: "1000:1000", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "shared", Target: "/shared"}}})
	script := "id -u; echo x > /work/file; mkdir -m 700 /tmp/private; echo y > /tmp/private/file; stat -c '%u:%g' /work /work/file"
	if got := l.Sh(sb, script); got != "1000\n1000:1000\n1000:1000" {
		t.Errorf("as the user of the spec: %q", got)
	}
	asRoot := func(script string) string {
		t.Helper()
		out, err := atoll.Output(l.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}, User: "root"})
		l.Must("exec as root", err)
		return string(out)
	}
	if got := asRoot("mkdir -m 700 /opt/theirs /shared/theirs; touch /opt/theirs/x /shared/theirs/x; chown -R 33:33 /opt/theirs /shared/theirs; stat -c %u:%g /opt/theirs; cat /tmp/private/file"); got != "33:33\ny\n" {
		t.Errorf("as root inside: %q", got)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(l.VolumePath(sb, "file"), &st); err != nil || int(st.Uid) == os.Geteuid() || st.Uid < 2_000_000 {
		t.Errorf("on the host, the file belongs to %d, %v", st.Uid, err)
	}
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := asRoot("cat /work/file; ls /opt/theirs /shared/theirs"); got != "x\n/opt/theirs:\nx\n\n/shared/theirs:\nx\n" {
		t.Errorf("after stop and start: %q", got)
	}
	l.RemoveSandbox(sb)
	l.Must("remove volume", atoll.RemoveVolume(l.Context(), l.Provider, atoll.DefaultProject, "shared"))
}

// detectsSubordinates reports whether this user has subordinate ids.
func detectsSubordinates() bool {
	ids, _ := supervised.FindSubIDs()
	return ids != nil
}

// TestConformanceAsUser runs the part of the suite that depends most on the rights of the provider.
func TestConformanceAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this is root, for whom TestConformance runs all of the suite")
	}
	needNative(t)
	groups := []string{"exec", "tty", "files", "volumes", "restart", "escape"}
	if detectsSubordinates() { // what differs from the other user
		groups = []string{"exec", "files", "volumes"}
	}
	providertest.Run(t, openProvider, append(suiteOptions(), sharedGroups, providertest.Only(groups...))...)
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
	if caps.Users != detectsSubordinates() {
		t.Errorf("Caps.Users: %t", caps.Users)
	}
	if !caps.Users {
		_, err := l.Create(l.Context(), &atoll.Spec{User: "1000"})
		supervisedtest.WantKind(t, "user", err, atoll.ErrUnsupported, "root", "usermod")
		_, err = sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}, User: "1000"})
		supervisedtest.WantKind(t, "exec as another user", err, atoll.ErrUnsupported, "root")
	}
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
	_, err := l.Create(l.Context(), &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/etc/shadow", Target: "/x"}}})
	supervisedtest.WantKind(t, "a file of root's", err, atoll.ErrDenied, "/etc/shadow")
}
