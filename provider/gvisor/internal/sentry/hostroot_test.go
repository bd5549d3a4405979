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

// inMounts calls f in a mount namespace of its own, in which it can mount anything, also
// over the machine's directories. Errors of a machine that does not let root do that are
// ErrUnsupported.
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

// mountExtras adds mounts to this mount namespace's /usr that a machine can have there.
func mountExtras(t *testing.T) error {
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

var hostRootShows = map[string]bool{
	"usr/bin/env": true, "usr/local/tool": true, "usr/lib/one/lib.so": true,
	"usr/etc/services": true, "usr/local/etc/fonts/local.conf": true, "etc/passwd": true,
	"usr/local/etc/java-1/jvm.cfg": true, "usr/local/etc/java-1/security/java.security": true,
	"usr/src": true, "usr/local/var": true, "usr/local/lib": true, // empty

	"usr/src/app": false, "usr/local/var/db": false, "usr/etc/npmrc": false, "usr/local/etc/npmrc": false,
	"usr/local/etc/java-1/management/jmxremote.password": false, "usr/local/lib/mounted": false, "usr/local/lib/deep": false, "etc/shadow": false, "home/user": false, ".blank": false,
}

// checkView checks the root that layOutHostRoot made at dir.
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
		if err := mountExtras(t); err != nil {
			return err
		}
		if err := layOutHostRoot(dir, nil); err != nil {
			return err
		}
		checkView(t, dir, hostRootShows)
		checkWritable(t, dir, "usr", "usr/local/bin")
		return nil
	})
}

// newTestEngine returns the engine for a job, of which nothing runs.
func newTestEngine(j *supervisor.Job) *engine {
	return &engine{sandbox: &supervisor.Sandbox{Job: j}, job: &job{Job: j}}
}

// checkWritable checks that files can be made in directories of the root that
// layOutHostRoot made at dir, and that nothing else has changed.
func checkWritable(t *testing.T, dir string, names ...string) {
	t.Helper()
	e := newTestEngine(&supervisor.Job{Spec: atoll.Spec{ID: atoll.NewID(), Workdir: atoll.DefaultWorkdir}})
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

// Named paths are shown, with the mounts below them, even if they are hidden, or below a
// hidden path, or shown already.
func TestHostRootShowsWhatIsNamed(t *testing.T) {
	inMounts(t, func() error {
		big, dir := filepath.Join(t.TempDir(), "big"), t.TempDir()
		if err := os.WriteFile(big, make([]byte, 2<<20), 0o644); err != nil {
			return err
		}
		if err := mountExtras(t); err != nil {
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

// viewEnv names the directory at which a process that this test starts lays out the host's
// root.
const viewEnv = "ATOLL_TEST_VIEW"

// In a user namespace, the machine's mounts cannot be removed, nor can a directory be shown
// without the mounts below it: they are covered.
func TestHostRootInUserNamespace(t *testing.T) {
	if dir := os.Getenv(viewEnv); dir != "" {
		if err := layOutHostRoot(dir, nil); err != nil {
			t.Fatal(err)
		}
		checkView(t, dir, hostRootShows)
		checkWritable(t, dir, "usr/local/bin")
		e := newTestEngine(&supervisor.Job{Mounts: []supervisor.Mount{{Source: dir, Target: "/usr/none"}}})
		if err := e.prepareMountTargets(dir); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), " /usr,") {
			t.Errorf("a target above a covered mount: %v, want unsupported, with /usr in it", err)
		}
		return
	}
	inMounts(t, func() error {
		if err := mountExtras(t); err != nil {
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
