package filesync_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestUnreadableAsUser runs TestUnreadable as a user who cannot read everything.
func TestUnreadableAsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("TestUnreadable does it")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir, err := os.MkdirTemp("", "") // whose parents are readable for all
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestUnreadable$", "-test.v") // whose directory may be closed to other users
	cmd.ExtraFiles, cmd.Dir, cmd.Env = []*os.File{file}, "/", append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnreadable") {
		t.Errorf("%v\n%s", err, out)
	}
}
