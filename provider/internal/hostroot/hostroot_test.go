//go:build linux

package hostroot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/hostroot/hostroottest"
)

// checkView checks the root that LayOut made at dir.
func checkView(t *testing.T, dir string, shows map[string]bool) {
	t.Helper()
	hostroottest.CheckView(t, dir, shows)
	if err := os.WriteFile(filepath.Join(dir, "usr/local/tool"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v, want a read-only file system", err)
	}
}

func TestLayOut(t *testing.T) {
	hostroottest.InMounts(t, func() error {
		dir := t.TempDir()
		if err := hostroottest.MountExtras(t); err != nil {
			return err
		}
		if err := LayOut(dir, Options{}); err != nil {
			return err
		}
		checkView(t, dir, hostroottest.Shows())
		return nil
	})
}

// Named paths are shown, with the mounts below them, even if they are hidden, or below a
// hidden path, or shown already.
func TestLayOutShowsExtra(t *testing.T) {
	hostroottest.InMounts(t, func() error {
		big, dir := filepath.Join(t.TempDir(), "big"), t.TempDir()
		if err := os.WriteFile(big, make([]byte, 2<<20), 0o644); err != nil {
			return err
		}
		if err := hostroottest.MountExtras(t); err != nil {
			return err
		}
		named := []string{"/usr/local/lib/deep", "/usr/src/app/config", "/usr/local/tool", "/usr/bin/env", "/usr/local/var", big}
		if err := LayOut(dir, Options{Extra: named}); err != nil {
			return err
		}
		for _, path := range named {
			data, err := os.ReadFile(path)
			if got, gotErr := os.ReadFile(filepath.Join(dir, path)); err == nil && (string(got) != string(data) || gotErr != nil) {
				t.Errorf("%s is not shown as it is: %v", path, gotErr)
			}
		}
		checkView(t, dir, map[string]bool{
			"usr/local/lib/deep/below": true, "usr/local/lib/mounted": false, "usr/local/var/db": true,
			"usr/src/app/config": true, "usr/etc/npmrc": false,
		})
		dir = t.TempDir()
		if err := LayOut(dir, Options{Extra: []string{"/usr/local"}}); err != nil {
			return err
		}
		checkView(t, dir, map[string]bool{
			"usr/local/lib/deep/below": true, "usr/local/lib/mounted": true, "usr/local/var/db": false, "usr/local/etc/npmrc": false,
		})
		return nil
	})
}

// In a user namespace, the machine's mounts cannot be removed, nor can a directory be shown
// without the mounts below it: they are covered. Nor can the namespace have a mapping.
func TestLayOutInUserNamespace(t *testing.T) {
	hostroottest.InUserNamespace(t, func(dir string) {
		own, err := os.Open("/proc/self/ns/user")
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		for _, idMap := range []*os.File{nil, own} {
			at := filepath.Join(dir, fmt.Sprint(idMap != nil))
			if err := os.Mkdir(at, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := LayOut(at, Options{IDMap: idMap}); err != nil {
				t.Fatal(err)
			}
			checkView(t, at, hostroottest.Shows())
		}
	})
}

// idBase is the user outside to which userNamespace maps its root.
const idBase = 1 << 30

// userNamespace returns a user namespace with 65536 users and groups.
func userNamespace(t *testing.T) (*os.File, error) {
	cmd := exec.Command("cat") // ends with its stdin
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: idBase, Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("user namespace: %w (%w)", err, errors.ErrUnsupported)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err := errors.Join(err, stdin.Close(), cmd.Wait()); err != nil {
		return nil, err
	}
	t.Cleanup(func() { namespace.Close() })
	return namespace, nil
}

// canMap reports whether the kernel maps the owners of the file system at dir.
func canMap(dir string, namespace *os.File) bool {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr) == nil
}

// A mapping is of directories and of large files, and of no file system that cannot have
// one, such as an overlay.
func TestLayOutMapsOwners(t *testing.T) {
	hostroottest.InMounts(t, func() error {
		shown, dir := t.TempDir(), t.TempDir()
		namespace, err := userNamespace(t)
		if err != nil {
			return err
		}
		if !canMap(shown, namespace) {
			return fmt.Errorf("an ID mapping of %s: %w", shown, errors.ErrUnsupported)
		}
		tree, big, small := filepath.Join(shown, "tree"), filepath.Join(shown, "big"), filepath.Join(shown, "small")
		err = errors.Join(
			os.Mkdir(tree, 0o755), os.WriteFile(tree+"/root", nil, 0o644), os.WriteFile(tree+"/user", nil, 0o644), os.Chown(tree+"/user", 1000, 100),
			os.WriteFile(big, make([]byte, 2<<20), 0o644), os.WriteFile(small, nil, 0o644),
		)
		if err != nil {
			return err
		}
		if err := hostroottest.MountExtras(t); err != nil {
			return err
		}
		if err := LayOut(dir, Options{Extra: []string{tree, big, small}, IDMap: namespace}); err != nil {
			return err
		}
		checkView(t, dir, hostroottest.Shows())
		for path, want := range map[string][2]uint32{
			tree: {idBase, idBase}, tree + "/root": {idBase, idBase}, tree + "/user": {idBase + 1000, idBase + 100},
			big: {idBase, idBase}, small: {0, 0}, "/usr/local/tool": {0, 0}, "/usr": {0, 0},
		} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, path), &st); err != nil || st.Uid != want[0] || st.Gid != want[1] {
				t.Errorf("%s: owner %d, group %d, %v, want %v", path, st.Uid, st.Gid, err, want)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, tree, "root"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("write: %v, want a read-only file system", err)
		}
		return nil
	})
}

func TestSystemAccounts(t *testing.T) {
	passwd := "root:hash:0:0:Admin,Room 1:/root:/bin/bash\nalice:x:1000:1000:Alice:/home/alice:/bin/zsh\nnobody:x:65534:65534::/x:/bin/false\n"
	got := systemAccounts("passwd", []byte(passwd))
	want := "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
	if got != want {
		t.Errorf("passwd = %q, want %q", got, want)
	}
	if got := systemAccounts("passwd", []byte(strings.Repeat("x", 100_000)+"\n"+passwd)); got != want {
		t.Errorf("passwd after a long line = %q, want %q", got, want)
	}
	if got := systemAccounts("group", []byte("sudo:x:27:alice\nalice:x:1000:\n")); got != "sudo:x:27:\n" {
		t.Errorf("group = %q", got)
	}
}
