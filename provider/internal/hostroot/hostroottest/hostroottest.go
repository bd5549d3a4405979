//go:build linux

// Package hostroottest has mount namespaces and mounts for tests of package hostroot and of its users.
package hostroottest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// InMounts calls f in a mount namespace of its own, in which it can mount anything, also
// over the machine's directories. The test is skipped if this process is not root, and for
// errors of f that are ErrUnsupported: those of a machine that does not let root do that.
// f runs in a goroutine of its own.
func InMounts(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this function
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			done <- fmt.Errorf("mount namespace: %w (%w)", err, errors.ErrUnsupported)
			return
		}
		done <- f()
	}()
	if err := <-done; errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// viewEnv names the directory with which a process of InUserNamespace calls its function.
const viewEnv = "ATOLL_TEST_VIEW"

// InUserNamespace calls f with an empty directory in a process of its own, which runs only
// this test. It is root of a user namespace and has a mount namespace, with the mounts of
// MountExtras, which it cannot remove. The test calls nothing else.
func InUserNamespace(t *testing.T, f func(dir string)) {
	t.Helper()
	if dir := os.Getenv(viewEnv); dir != "" {
		f(dir)
		return
	}
	InMounts(t, func() error {
		if err := MountExtras(t); err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), viewEnv+"="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("user namespace: %w (%w)", err, errors.ErrUnsupported)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return nil
	})
}

// MountExtras adds mounts to this mount namespace's /usr that a machine can have there:
// among them are an overlay on /usr itself and a file.
func MountExtras(t *testing.T) error {
	over := t.TempDir()
	for name, text := range map[string]string{
		"src/app/config": "secret", "etc/npmrc": "token", "local/etc/npmrc": "token", "local/var/db": "data", "lib/one/token": "", "lib/one/lib.so": "code",
		"local/etc/java-1/jvm.cfg": "needed", "local/etc/java-1/management/jmxremote.password": "secret", "local/etc/java-1/security/java.security": "needed",
		"etc/services": "ssh 22", "local/etc/fonts/local.conf": "fonts", "local/tool": "tool", "local/lib/deep/hole": "",
	} {
		if err := writeText(filepath.Join(over, "upper", name), text); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(over, "work"), 0o755); err != nil {
		return err
	}
	opts := "lowerdir=/usr,upperdir=" + over + "/upper,workdir=" + over + "/work"
	if err := unix.Mount("test", "/usr", "overlay", 0, opts); err != nil {
		return fmt.Errorf("mount overlay: %w (%w)", err, errors.ErrUnsupported)
	}
	return errors.Join(
		mountFiles("/usr/local/lib", "mounted", "deep/er"),
		mountFiles("/usr/local/lib/deep", "below"),
		unix.Mount(filepath.Join(over, "upper/etc/npmrc"), "/usr/lib/one/token", "", unix.MS_BIND, ""),
	)
}

// mountFiles mounts a tmpfs with these files at dir.
func mountFiles(dir string, files ...string) error {
	if err := unix.Mount("test", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, name := range files {
		if err := writeText(filepath.Join(dir, name), "of the host"); err != nil {
			return err
		}
	}
	return nil
}

func writeText(path, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// Shows returns, by their names, whether files are shown by default of a machine with the
// mounts of MountExtras.
func Shows() map[string]bool {
	return map[string]bool{
		"usr/bin/env": true, "usr/local/tool": true, "usr/lib/one/lib.so": true,
		"usr/etc/services": true, "usr/local/etc/fonts/local.conf": true, "etc/passwd": true,
		"usr/local/etc/java-1/jvm.cfg": true, "usr/local/etc/java-1/security/java.security": true,
		"usr/src": true, "usr/local/var": true, "usr/local/lib": true, // empty

		"usr/src/app": false, "usr/local/var/db": false, "usr/etc/npmrc": false, "usr/local/etc/npmrc": false,
		"usr/local/etc/java-1/management/jmxremote.password": false, "usr/local/lib/mounted": false, "usr/local/lib/deep": false, "etc/shadow": false, "home/user": false, ".blank": false,
	}
}

// CheckView checks which of the files of a machine with the mounts of MountExtras the root
// at dir shows, and that the file that is a mount is empty.
func CheckView(t *testing.T, dir string, shows map[string]bool) {
	t.Helper()
	for name, want := range shows {
		_, err := os.Lstat(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if (err == nil) != want {
			t.Errorf("/%s is shown: %v, want %v", name, err == nil, want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "usr/lib/one/token")); len(data) > 0 || err != nil {
		t.Errorf("a file that is a mount: %q, %v", data, err)
	}
}
