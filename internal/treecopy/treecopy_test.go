//go:build linux

package treecopy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// describeTree returns a line for each file of a tree.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `cd "$1" && find . -printf '%p %y %m %U %G %T@ %n %l\n' | sort && find . -type f -exec sha256sum {} + | sort && getfattr -R -d -m - . 2>/dev/null | sort`, "sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestCopy(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	script := `set -e; cd "$1"; mkdir -p a/b/c empty; echo text > a/file; ln a/file a/b/name; ln -s ../file a/b/link; ln -s /nowhere dangling
printf x > 'odd
name'; chmod 640 a/file; chmod 4755 'odd
name'; mkfifo pipe; truncate -s 3M holes; printf data | dd of=holes bs=1 seek=1048576 conv=notrunc 2>/dev/null
head -c 300000 /dev/urandom > random; touch -d '2001-02-03 04:05:06.789' a/file a/b empty dangling -h; chmod 700 empty
[ "$(id -u)" != 0 ] || chown -R 1234:5678 a; chmod 500 a/b/c; chmod 1777 a; touch -d '1999-01-01' a`
	if out, err := exec.Command("sh", "-c", script, "sh", from).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := unix.Setxattr(filepath.Join(from, "random"), "user.note", []byte("kept"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	capability := []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	owned := filepath.Join(from, "a", "file")
	root := os.Getuid() == 0 && unix.Setxattr(owned, "security.capability", capability, 0) == nil
	if err := Copy(context.Background(), from, to); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Getxattr(filepath.Join(to, "a", "file"), "security.capability", make([]byte, 64)); root && (n != len(capability) || err != nil) {
		t.Errorf("the capability of a file of another owner: %d bytes, %v", n, err)
	}
	want, got := describeTree(t, from), describeTree(t, to)
	if want != got {
		t.Errorf("the copy is\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(want, "./a/b/name f 640") {
		t.Errorf("the tree is not what the test wants: %s", want)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(to, "holes"), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("a file with holes takes %d bytes, %v", st.Blocks*512, err)
	}
	value := make([]byte, 10)
	if n, err := unix.Getxattr(filepath.Join(to, "random"), "user.note", value); err == nil && !bytes.Equal(value[:n], []byte("kept")) {
		t.Errorf("user.note = %q", value[:n])
	}
}

// A copy of a layer also has the marks that the kernel has put there.
func TestCopyLayer(t *testing.T) {
	from := t.TempDir()
	if err := unix.Mknod(filepath.Join(from, "removed"), unix.S_IFCHR, 0); err != nil {
		t.Skip(err)
	}
	if err := os.Link(filepath.Join(from, "removed"), filepath.Join(from, "too")); err != nil {
		t.Fatal(err)
	}
	attribute := "user.overlay.opaque"
	if os.Geteuid() == 0 {
		attribute = "trusted.overlay.opaque"
	}
	if err := unix.Setxattr(from, attribute, []byte("y"), 0); err != nil {
		t.Skip(err)
	}
	for layer, copy := range map[bool]func(context.Context, string, string) error{false: Copy, true: CopyLayer} {
		to := t.TempDir()
		if err := copy(context.Background(), from, to); err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		err := syscall.Lstat(filepath.Join(to, "too"), &st)
		if layer && (err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 || st.Nlink != 2) || !layer && err == nil {
			t.Errorf("as a layer %t: the mark is %+v, %v", layer, st, err)
		}
		n, err := unix.Getxattr(to, attribute, make([]byte, 8))
		if layer && (n != 1 || err != nil) || !layer && n > 0 && strings.HasPrefix(attribute, "trusted.") {
			t.Errorf("as a layer %t: %s has %d bytes, %v", layer, attribute, n, err)
		}
	}
}

func TestCopyEnds(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Copy(ctx, from, to); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy: %v", err)
	}
	if err := Copy(context.Background(), filepath.Join(from, "none"), to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Copy of nothing: %v", err)
	}
}
