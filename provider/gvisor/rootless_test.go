//go:build linux

package gvisor_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// asUser is the list of tests that an ordinary user runs as well.
const asUser = "^(TestAsUser|TestHostIsOutOfSight|TestRootInsideIsPowerless|TestReadOnlyMount|TestPlacesOfMounts|TestLinksAreThoseOfTheSandbox|TestKilledFromOutside|TestStopKeepsFiles|TestStopKeepsMuchWork|TestTwoProcessesAtOnce|TestSnapshotForks|TestImageIsDirectory|TestImageConfiguration|TestTerminalKeys|TestProbe|TestHelperThatCannotServe)$"

// TestRootless runs the most important of these tests as an ordinary user.
func TestRootless(t *testing.T) {
	supervisedtest.RunAsUser(t, asUser, map[string]string{engineVar: helperPath(t)})
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
	for _, path := range []string{filepath.Join(dir, "new"), filepath.Join(l.opts.Dir, "volumes", "default", "data-"+sb.ID(), "file")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
			t.Errorf("%s belongs to %d", path, uid)
		}
	}
	caps := l.Info().Caps
	if caps.Users {
		t.Error("Caps.Users")
	}
	for what, spec := range map[string]atoll.Spec{
		"user": {User: "1000"},
	} {
		_, err := l.Create(l.Context(), &spec)
		supervisedtest.WantKind(t, what, err, atoll.ErrUnsupported, "root")
	}
	_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"true"}, User: "1000"})
	supervisedtest.WantKind(t, "exec as another user", err, atoll.ErrUnsupported, "root")
	if !caps.MemoryLimit {
		_, err := l.Create(l.Context(), &atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30}})
		supervisedtest.WantKind(t, "memory limit", err, atoll.ErrUnsupported, "memory")
	}
	if !caps.CPULimit {
		_, err := l.Create(l.Context(), &atoll.Spec{Resources: atoll.Resources{CPUs: 1}})
		supervisedtest.WantKind(t, "CPU limit", err, atoll.ErrUnsupported, "CPU")
	}
	_, err = l.Create(l.Context(), &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/etc/shadow", Target: "/x"}}})
	supervisedtest.WantKind(t, "a file of root's", err, atoll.ErrDenied, "/etc/shadow")
}
