//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// docker starts a daemon of our own, away from any other: in network, mount
// and PID namespaces that die with it, with no bridge and no firewall rules.
func (b *bench) docker(ctx context.Context) (p peers, _ func() error, err error) {
	if os.Geteuid() != 0 {
		return p, nil, missingError("docker: only root can start a daemon")
	}
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		return p, nil, missingError("dockerd is not installed: apt-get install docker.io")
	}
	dir := filepath.Join(b.dir, "docker")
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	parent := fmt.Sprintf("/atoll-bench-%d", os.Getpid())
	daemon := exec.CommandContext(ctx, "sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0" "$@"`,
		dockerd, "--host", socket, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "docker.pid"), "--config-file", filepath.Join(dir, "none.json"), "--cgroup-parent", parent,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
	stderr := &atoll.Tail{Limit: 4 << 10}
	daemon.Stderr = stderr
	daemon.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Setpgid:    true, // ^C is for us, who then stop it
	}
	daemon.Cancel = func() error { return daemon.Process.Signal(syscall.SIGTERM) }
	daemon.WaitDelay = patience
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "none.json"), []byte("{}"), 0o600); err != nil {
		return p, nil, err
	}
	if err := daemon.Start(); err != nil {
		return p, nil, err
	}
	closer := func() error {
		_ = daemon.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = daemon.Wait()                          // with the signal
		return removeGroups(parent)
	}
	docker := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "docker", append([]string{"--host", socket}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		return cmd
	}
	err = until(ctx, func() error {
		_, err := untilEnd(docker(ctx, "version"))
		return err
	})
	if err != nil {
		return p, closer, fmt.Errorf("dockerd: %w: %s", err, stderr.Bytes())
	}
	packed := filepath.Join(b.dir, "root.tar")
	for _, cmd := range []*exec.Cmd{
		exec.CommandContext(ctx, "tar", "-C", b.root, "-cf", packed, "."),
		docker(ctx, "import", packed, "busybox-root"),
		docker(ctx, "run", "--detach", "--network=none", "--name=live", "busybox-root", "sleep", "86400"),
	} {
		if _, err := untilEnd(cmd); err != nil {
			return p, closer, fmt.Errorf("%s: %w", cmd, err)
		}
	}
	stop := func() error {
		_, err := untilEnd(docker(context.WithoutCancel(ctx), "rm", "--force", "live"))
		return errors.Join(err, closer())
	}
	p.create = []method{{viaDocker, func(ctx context.Context) (time.Duration, error) {
		return untilFirst(docker(ctx, append([]string{"run", "--rm", "--network=none", "busybox-root"}, echo...)...), nil)
	}}}
	p.exec = []method{{viaDocker, func(ctx context.Context) (time.Duration, error) {
		return untilEnd(docker(ctx, append([]string{"exec", "live"}, echo...)...))
	}}}
	return p, stop, nil
}

// removeGroups removes the empty cgroups that the daemon leaves behind.
func removeGroups(parent string) error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup" + parent, "/sys/fs/cgroup/*" + parent} {
		dirs, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, dir := range dirs {
			errs = append(errs, os.Remove(dir))
		}
	}
	return errors.Join(errs...)
}
