//go:build linux

package native_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// The kernel's own directories of an overlay, which nobody may enter, and what a crash has left in them, are removed with the
// sandbox, and do not keep it from a start.
func TestRestOfAnOverlay(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	l.Sh(sb, "echo kept > /usr/local/bin/file")
	l.kill(l.SupervisorOf(sb))
	l.AwaitState(sb, atoll.StateFailed)
	l.leaveInOverlays(sb)
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /usr/local/bin/file"); got != "kept" {
		t.Errorf("its file: %q", got)
	}
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.leaveInOverlays(sb)
	l.RemoveSandbox(sb)
}

// leaveInOverlays leaves files in the directories that the kernel has made for the overlays of a sandbox.
func (l *lab) leaveInOverlays(sb atoll.Sandbox) {
	l.T.Helper()
	found := 0
	err := filepath.WalkDir(filepath.Join(l.opts.Dir, "sandboxes", sb.ID()), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || filepath.Base(path) != "work" || filepath.Base(filepath.Dir(path)) != "work" {
			return err
		}
		found++
		dir := filepath.Join(path, "#1a") // as a directory that is being removed
		for _, step := range []error{os.Chmod(path, 0o700), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0), os.Chmod(dir, 0), os.Chmod(path, 0)} {
			if step != nil {
				return step
			}
		}
		return fs.SkipDir
	})
	l.Must("leave files", err)
	if found == 0 {
		l.T.Error("there is no overlay")
	}
}
