package inroot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Where something is to be mounted, links lead to where they would if the root were that of
// all, and what is missing is made.
func TestOpen(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"usr/bin", "run"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "usr/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"bin": "usr/bin", "var": "/run", "up": "../../..", "out": outside, "gone": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		path string
		file bool
		want string // below root; "" is an error
		err  error
	}{
		{"/new/deep", false, "new/deep", nil},
		{"/new/file", true, "new/file", nil},
		{"/new/file", true, "new/file", nil}, // it is there
		{"/bin/of", false, "usr/bin/of", nil},
		{"/var/x/file", true, "run/x/file", nil},
		{"/up/here", false, "here", nil},
		{"/out/there", false, "", unix.EEXIST}, // a link that leads nowhere in this root
		{"/gone", false, "", unix.EEXIST},
		{"/usr/file/below", false, "", unix.ENOTDIR},
	} {
		fd, err := Open(root, tt.path, tt.file)
		if tt.want == "" {
			if !errors.Is(err, tt.err) {
				t.Errorf("open(%s): %v, want %v", tt.path, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("open(%s): %v", tt.path, err)
			continue
		}
		var got, want unix.Stat_t
		err = errors.Join(unix.Fstat(fd, &got), unix.Stat(filepath.Join(root, tt.want), &want), unix.Close(fd))
		if err != nil || got.Ino != want.Ino || (got.Mode&unix.S_IFMT == unix.S_IFREG) != tt.file {
			t.Errorf("open(%s) is not %s: %v", tt.path, tt.want, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}
