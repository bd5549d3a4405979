package sandboxnet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// A file that cannot be written to gets another one over it, unless it is not for everybody to read.
func TestCoverFile(t *testing.T) {
	testenv.Need(t, testenv.Root)
	if !testenv.InOwnProcess(t, unix.CLONE_NEWNS) {
		return
	}
	root := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"open": 0o644, "secret": 0o600} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("old"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mount(root, root, "", unix.MS_BIND, ""), unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	defer func() { // or the directory could not be removed
		_ = unix.Unmount(filepath.Join(root, "open"), 0)
		_ = unix.Unmount(root, 0)
	}()
	files := RootFiles{Root: root, Dir: filepath.Join(t.TempDir(), "trust")}
	if err := files.WriteFile("/open", []byte("new")); err != nil {
		t.Error(err)
	}
	if err := files.WriteFile("/secret", []byte("new")); err == nil {
		t.Error("a file that is not for everybody to read is covered by one that is")
	}
	for name, want := range map[string]string{"open": "new", "secret": "old"} {
		if data, err := files.ReadFile("/" + name); string(data) != want || err != nil {
			t.Errorf("%s has %q, %v, want %q", name, data, err, want)
		}
	}
}
