//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const viaPodman = "podman, rootless"

// podmanPeers returns podman as an ordinary user runs it: the user of this process, or, if that is root, the first user with subordinate ids.
func (b *bench) podmanPeers(ctx context.Context) (p peerMethods, closer func() error, err error) {
	for _, name := range []string{"podman", "runc", "newuidmap"} {
		if _, err := exec.LookPath(name); err != nil {
			return p, nil, missingError("podman: " + name + " is not installed: apt-get install podman runc uidmap")
		}
	}
	credential, err := findOrdinaryUser()
	if err != nil {
		return p, nil, err
	}
	dir, err := os.MkdirTemp("", "bench-podman") // not below the directory of the benchmark, which the user cannot enter
	if err != nil {
		return p, nil, err
	}
	podman := func(ctx context.Context, args ...string) *exec.Cmd {
		// runc, since crun refuses machines with both versions of cgroups.
		cmd := exec.CommandContext(ctx, "podman", append([]string{"--runtime", "runc", "--cgroup-manager", "cgroupfs"}, args...)...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"), "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		return cmd
	}
	closer = func() error { return errors.Join(endPause(dir), os.RemoveAll(dir)) }
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "run"), 0o700)); err != nil {
		return p, closer, err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", b.root, root).CombinedOutput(); err != nil {
		return p, closer, fmt.Errorf("%w: %s", err, out)
	}
	if credential != nil {
		owner := fmt.Sprintf("%d:%d", credential.Uid, credential.Gid)
		if out, err := exec.CommandContext(ctx, "chown", "-R", owner, dir).CombinedOutput(); err != nil {
			return p, closer, fmt.Errorf("%w: %s", err, out)
		}
	}
	run := append([]string{"run", "--rm", "--network", "none", "--rootfs", root}, echoArgs...)
	if out, err := podman(ctx, run...).CombinedOutput(); err != nil { // the first one makes its storage
		return p, closer, missingError(fmt.Sprintf("podman: %v: %s", err, strings.TrimSpace(string(out))))
	}
	p.create = []method{{viaPodman, func(ctx context.Context) (time.Duration, error) { return untilFirst(podman(ctx, run...), nil) }}}
	return p, closer, nil
}

// findOrdinaryUser returns the first user with subordinate ids if this process runs as root, and nil otherwise.
func findOrdinaryUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	file, err := os.Open("/etc/subuid")
	if err != nil {
		return nil, missingError("podman: no user has subordinate ids")
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, _, _ := strings.Cut(lines.Text(), ":")
		u, err := user.Lookup(name)
		if err != nil || u.Uid == "0" {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, missingError("podman: no user has subordinate ids: add a user with useradd -m NAME")
}

// endPause ends the process that holds the namespaces of the containers of a runtime directory below dir.
func endPause(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "run", "libpod", "tmp", "pause.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}
