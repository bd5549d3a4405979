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

// An engine is a private Docker daemon in its own network, mount and PID namespaces, without a bridge
// and firewall rules.
type engine struct {
	b      *bench
	dir    string
	socket string
	parent string // cgroup above those of the containers
	daemon *exec.Cmd
}

// image is the name of the root file system as an image of the engine.
const image = "atoll-local/root:1"

// startEngine starts an engine with the image. If it returns an engine, also with an error, the caller
// must stop it.
func (b *bench) startEngine(ctx context.Context, name string) (*engine, error) {
	if os.Geteuid() != 0 {
		return nil, missingError("docker: only root can start a daemon")
	}
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		return nil, missingError("dockerd is not installed: apt-get install docker.io")
	}
	e := &engine{b: b, dir: filepath.Join(b.dir, name), parent: fmt.Sprintf("/atoll-bench-%s-%d", name, os.Getpid())}
	at := func(name string) string { return filepath.Join(e.dir, name) }
	e.socket = "unix://" + at("docker.sock")
	e.daemon = exec.CommandContext(ctx, "sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0" "$@"`,
		dockerd, "--host", e.socket, "--data-root", at("data"), "--exec-root", at("exec"),
		"--pidfile", at("docker.pid"), "--config-file", at("none.json"), "--cgroup-parent", e.parent,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
	stderr := &atoll.Tail{Limit: 4 << 10}
	e.daemon.Stderr = stderr
	e.daemon.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Setpgid:    true, // ^C must reach only bench, which then stops the daemon
	}
	e.daemon.Cancel = func() error { return e.daemon.Process.Signal(syscall.SIGTERM) }
	e.daemon.WaitDelay = waitLimit
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(at("none.json"), []byte("{}"), 0o600); err != nil {
		return nil, err
	}
	if err := e.daemon.Start(); err != nil {
		return nil, err
	}
	err = waitUntil(ctx, func() error {
		_, err := untilEnd(e.dockerCommand(ctx, "version"))
		return err
	})
	if err != nil {
		return e, fmt.Errorf("dockerd: %w: %s", err, stderr.Bytes())
	}
	packed := at("root.tar")
	for _, cmd := range []*exec.Cmd{
		exec.CommandContext(ctx, "tar", "-C", b.root, "-cf", packed, "."),
		e.dockerCommand(ctx, "import", packed, image),
	} {
		if _, err := untilEnd(cmd); err != nil {
			return e, fmt.Errorf("%s: %w", cmd, err)
		}
	}
	return e, nil
}

// dockerCommand returns a command of docker's command line.
func (e *engine) dockerCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"--host", e.socket}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir}
	return cmd
}

// startLive starts a container called "live" for commands. stop removes it.
func (e *engine) startLive(ctx context.Context) (stop func() error, err error) {
	cmd := e.dockerCommand(ctx, "run", "--detach", "--network=none", "--name=live", image, "sleep", "86400")
	if _, err := untilEnd(cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return func() error {
		_, err := untilEnd(e.dockerCommand(context.WithoutCancel(ctx), "rm", "--force", "live"))
		return err
	}, nil
}

// stopDaemon stops the daemon and removes its cgroups.
func (e *engine) stopDaemon() error {
	_ = e.daemon.Process.Signal(syscall.SIGTERM) // it may have ended already
	_ = e.daemon.Wait()                          // with an error about the signal
	return removeGroups(e.parent)
}

// dockerPeers returns the methods that use docker's command line.
func (b *bench) dockerPeers(ctx context.Context) (p peerMethods, closer func() error, err error) {
	e, err := b.startEngine(ctx, "docker")
	if e != nil {
		closer = e.stopDaemon
	}
	if err != nil {
		return p, closer, err
	}
	stop, err := e.startLive(ctx)
	if err != nil {
		return p, closer, err
	}
	p.create = []method{{viaDocker, func(ctx context.Context) (time.Duration, error) {
		return untilFirst(e.dockerCommand(ctx, append([]string{"run", "--rm", "--network=none", image}, echoArgs...)...), nil)
	}}}
	p.exec = []method{{viaDocker, func(ctx context.Context) (time.Duration, error) {
		return untilEnd(e.dockerCommand(ctx, append([]string{"exec", "live"}, echoArgs...)...))
	}}}
	return p, func() error { return errors.Join(stop(), e.stopDaemon()) }, nil
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
