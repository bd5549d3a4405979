//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// waitLimit is the longest time that a program may take to start or to end.
const waitLimit = time.Minute

// A server is a running "atoll serve" with its own state directory, and a client of it.
type server struct {
	*client.Client
	state string
	cmd   *exec.Cmd
}

// startServer starts a server. settings are environment variables.
func startServer(ctx context.Context, b *bench, name string, settings ...string) (_ *server, err error) {
	s := &server{state: filepath.Join(b.dir, name)}
	s.cmd = b.atollCommand(context.WithoutCancel(ctx), s.state, "serve")
	s.cmd.Env = append(s.cmd.Env, "ATOLL_MAX_SANDBOXES=0")
	s.cmd.Env = append(s.cmd.Env, settings...)
	s.cmd.Stderr = &atoll.Tail{Limit: 4 << 10}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C must reach only bench, which then stops the server
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.endProcess())
		}
	}()
	url := "unix://" + filepath.Join(s.state, "atoll.sock")
	err = waitUntil(ctx, func() (err error) {
		s.Client, err = client.New(ctx, client.Options{URL: url})
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.Info().Name == "gvisor" {
		b.version = s.Info().Version
	}
	return s, nil
}

// atollCommand returns a command of the atoll binary with the state directory, isolated from other
// state on this machine.
func (b *bench) atollCommand(ctx context.Context, state string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.atoll, append([]string{"--state-dir", state}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = waitLimit
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "XDG_RUNTIME_DIR=" + filepath.Join(b.dir, "run")}
	return cmd
}

// stopServer removes all sandboxes and ends the server.
func (s *server) stopServer() error {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	all, err := s.List(ctx, atoll.Filter{})
	for _, st := range all {
		err = errors.Join(err, s.Sandbox(st.ID).Remove(ctx, atoll.RemoveVolumes()))
	}
	return errors.Join(err, s.Close(), s.endProcess())
}

// endProcess ends the server with SIGTERM and waits for it.
func (s *server) endProcess() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("atoll serve: %w:\n%s", err, s.cmd.Stderr.(*atoll.Tail).Bytes())
	}
	return nil
}

// waitUntil calls f until it succeeds, for waitLimit at most, and returns its last error.
func waitUntil(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// makeBusyboxRoot makes a root file system with a static busybox.
func makeBusyboxRoot(dir string) (string, error) {
	busybox := ""
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		if _, err := os.Stat(path); err == nil {
			busybox = path
		}
	}
	if busybox == "" {
		return "", errors.New("no static busybox: apt-get install busybox-static")
	}
	for _, sub := range []string{"bin", "dev", "etc", "proc", "root", "sys", "tmp", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return "", err
		}
	}
	if err := copyFile(busybox, filepath.Join(dir, "bin", "busybox"), 0o755); err != nil {
		return "", err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return "", err
	}
	for _, name := range strings.Fields(string(applets)) {
		err := os.Symlink("busybox", filepath.Join(dir, "bin", name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return dir, os.WriteFile(filepath.Join(dir, "etc", "passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644)
}

// copyFile copies a file as cp does, inside the kernel if possible.
func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
