//go:build linux

package sentry

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// inMounts calls f in a mount namespace of its own, in which it can mount what
// it likes, also over the machine's directories. What this machine does not let
// root do is ErrUnsupported.
func inMounts(t *testing.T, f func() error) {
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

// mounted mounts a tmpfs with these files at dir.
func mounted(dir string, files ...string) error {
	if err := unix.Mount("test", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, name := range files {
		if err := store(filepath.Join(dir, name), "of the host"); err != nil {
			return err
		}
	}
	return nil
}

func store(path, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// decorate gives this mount namespace's /usr what a machine can have there.
func decorate(t *testing.T) error {
	over := t.TempDir()
	for name, text := range map[string]string{
		"src/app/config": "secret", "etc/npmrc": "token", "local/etc/npmrc": "token", "local/var/db": "data", "lib/one/token": "", "lib/one/lib.so": "code",
		"local/etc/java-1/jvm.cfg": "needed", "local/etc/java-1/management/jmxremote.password": "secret", "local/etc/java-1/security/java.security": "needed",
		"etc/services": "ssh 22", "local/etc/fonts/local.conf": "fonts", "local/tool": "tool", "local/lib/deep/hole": "",
	} {
		if err := store(filepath.Join(over, "upper", name), text); err != nil {
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
		mounted("/usr/local/lib", "mounted", "deep/er"),
		mounted("/usr/local/lib/deep", "below"),
		unix.Mount(filepath.Join(over, "upper/etc/npmrc"), "/usr/lib/one/token", "", unix.MS_BIND, ""),
	)
}

var hostRootShows = map[string]bool{
	"usr/bin/env": true, "usr/local/tool": true, "usr/lib/one/lib.so": true,
	"usr/etc/services": true, "usr/local/etc/fonts/local.conf": true, "etc/passwd": true,
	"usr/local/etc/java-1/jvm.cfg": true, "usr/local/etc/java-1/security/java.security": true,
	"usr/src": true, "usr/local/var": true, "usr/local/lib": true, // empty

	"usr/src/app": false, "usr/local/var/db": false, "usr/etc/npmrc": false, "usr/local/etc/npmrc": false,
	"usr/local/etc/java-1/management/jmxremote.password": false, "usr/local/lib/mounted": false, "usr/local/lib/deep": false, "etc/shadow": false, "home/user": false, ".blank": false,
}

// checkView checks what hostRoot made at dir.
func checkView(t *testing.T, dir string, shows map[string]bool) {
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
	if err := os.WriteFile(filepath.Join(dir, "usr/local/tool"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v, want a read-only file system", err)
	}
}

func TestHostRoot(t *testing.T) {
	inMounts(t, func() error {
		dir := t.TempDir()
		if err := decorate(t); err != nil {
			return err
		}
		if err := layOutHostRoot(dir, nil); err != nil {
			return err
		}
		checkView(t, dir, hostRootShows)
		checkOpenUp(t, dir, "usr", "usr/local/bin")
		return nil
	})
}

// engineOf is the engine for a job, of which nothing runs.
func engineOf(j *supervisor.Job) *engine {
	return &engine{sandbox: &supervisor.Sandbox{Job: j}, job: &job{Job: j}}
}

// checkOpenUp checks that something can be made in directories of what hostRoot
// made at dir, and nothing else has changed.
func checkOpenUp(t *testing.T, dir string, names ...string) {
	t.Helper()
	e := engineOf(&supervisor.Job{Spec: atoll.Spec{ID: atoll.NewID(), Workdir: atoll.DefaultWorkdir}})
	for _, name := range names {
		e.job.Mounts = append(e.job.Mounts, supervisor.Mount{Source: t.TempDir(), Target: "/" + name + "/made/here"})
	}
	before, err := os.Stat(filepath.Join(dir, names[0]))
	if err = errors.Join(err, e.prepareMountTargets(dir)); err != nil {
		t.Error(err)
		return
	}
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(dir, name, "made/here"), 0o755); err != nil {
			t.Error(err)
		}
	}
	if after, err := os.Stat(filepath.Join(dir, names[0])); err != nil || after.Mode() != before.Mode() {
		t.Errorf("/%s is %v, %v; was %v", names[0], after, err, before.Mode())
	}
	shows := maps.Clone(hostRootShows)
	shows["usr/upper"], shows["usr/work"] = false, false
	for name, want := range shows {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("with places for mounts, /%s is shown: %v, want %v", name, err == nil, want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "usr/lib/one/token")); len(data) > 0 || err != nil {
		t.Errorf("with places for mounts, a file that is a mount: %q, %v", data, err)
	}
}

// What is named is shown, with what is mounted there, though it is hidden, or
// below what is, or seen already.
func TestHostRootShowsWhatIsNamed(t *testing.T) {
	inMounts(t, func() error {
		big, dir := filepath.Join(t.TempDir(), "big"), t.TempDir()
		if err := os.WriteFile(big, make([]byte, 2<<20), 0o644); err != nil {
			return err
		}
		if err := decorate(t); err != nil {
			return err
		}
		named := []string{"/usr/local/lib/deep", "/usr/src/app/config", "/usr/local/tool", "/usr/bin/env", "/usr/local/var", big}
		if err := layOutHostRoot(dir, named); err != nil {
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
		if err := layOutHostRoot(dir, []string{"/usr/local"}); err != nil {
			return err
		}
		checkView(t, dir, map[string]bool{
			"usr/local/lib/deep/below": true, "usr/local/lib/mounted": true, "usr/local/var/db": false, "usr/local/etc/npmrc": false,
		})
		return nil
	})
}

// viewEnv names the directory at which a process that this test starts lays out
// the host's root.
const viewEnv = "ATOLL_TEST_VIEW"

// In a user namespace, what the machine has mounted cannot be taken off, nor a
// directory be shown without what is mounted below it: it is covered.
func TestHostRootInUserNamespace(t *testing.T) {
	if dir := os.Getenv(viewEnv); dir != "" {
		if err := layOutHostRoot(dir, nil); err != nil {
			t.Fatal(err)
		}
		checkView(t, dir, hostRootShows)
		checkOpenUp(t, dir, "usr/local/bin")
		e := engineOf(&supervisor.Job{Mounts: []supervisor.Mount{{Source: dir, Target: "/usr/none"}}})
		if err := e.prepareMountTargets(dir); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), " /usr ") {
			t.Errorf("a place above what is covered: %v, want unsupported, with /usr in it", err)
		}
		return
	}
	inMounts(t, func() error {
		if err := decorate(t); err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestHostRootInUserNamespace$", "-test.v")
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
