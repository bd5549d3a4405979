//go:build unix

package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/life"
	"github.com/seed46cd37a8/atoll/internal/process"
)

func probe() atoll.Probe { return atoll.Probe{OK: true, Notes: []string{Warning}} }

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// whoami is the user that all processes have.
var whoami = sync.OnceValue(func() *user.User {
	if u, err := user.Current(); err == nil {
		return u
	}
	uid, gid := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	return &user.User{Username: uid, Uid: uid, Gid: gid}
})

// OwnUser implements life.Backend.
func (backend) OwnUser(name string) bool {
	u := whoami()
	return slices.Contains([]string{"", u.Username, u.Uid, u.Uid + ":" + u.Gid}, name)
}

// environ is what a process finds in its environment: little, and nothing of
// the caller's.
func environ(pl *life.Place, cmd *atoll.Command, mark string) []string {
	env := []string{"PATH=" + defaultPath, "HOME=" + pl.Dir, "USER=" + whoami().Username, "LOGNAME=" + whoami().Username}
	if cmd.TTY != nil {
		env = append(env, "TERM=xterm-256color")
	}
	return process.Environ(env, pl.Spec.Env, cmd.Env, []string{mark})
}

// Shell implements life.Backend.
func (backend) Shell(pl *life.Place, cmd *atoll.Command) string {
	if shell := process.Lookup(environ(pl, cmd, ""), "SHELL"); shell != "" && shell != "/bin/false" {
		return shell
	}
	if executable("/bin/bash") == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// Start implements life.Backend.
func (backend) Start(ctx context.Context, pl *life.Place, cmd *atoll.Command, io process.Stdio) (process.Handle, error) {
	id := newMark(pl.ID)
	env := environ(pl, cmd, id.String())
	dir := pl.HostPath(cmd.Dir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrExecFailed, "working directory %q: not a directory", cmd.Dir)
	}
	program, err := find(cmd.Args[0], process.Lookup(env, "PATH"), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrCommandNotFound, "%q: no such command", cmd.Args[0])
	}
	if err != nil {
		return nil, startError(pl, cmd.Args[0], err)
	}
	p, err := os.StartProcess(program, cmd.Args, &os.ProcAttr{
		Dir:   dir,
		Env:   env,
		Files: []*os.File{io.Stdin, io.Stdout, io.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: cmd.TTY != nil},
	})
	if err != nil {
		return nil, startError(pl, cmd.Args[0], err)
	}
	return &handle{p: p, mark: id}, nil
}

// find is exec.LookPath for another PATH and working directory than those of
// this process.
func find(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	failed := error(fs.ErrNotExist)
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue // never from the directory that happens to be the current one
		}
		full := filepath.Join(d, name)
		err := executable(full)
		if err == nil {
			return full, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			failed = err
		}
	}
	return "", failed
}

func executable(name string) error {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return fs.ErrNotExist
	case err != nil:
		return err
	case info.IsDir():
		return syscall.EISDIR
	case info.Mode()&0o111 == 0:
		return fs.ErrPermission
	}
	return nil
}

// startError is about a program that is there.
func startError(pl *life.Place, name string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	kind := atoll.ErrExecFailed
	if isAny(err, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE) {
		kind = atoll.ErrExhausted
	}
	return atoll.Errorf("exec", pl.ID, kind, "%q: %w", name, err)
}

func isAny(err error, targets ...syscall.Errno) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// A handle is a process in a session of its own.
type handle struct {
	p    *os.Process
	mark mark

	mu     sync.Mutex
	reaped bool // its PID may belong to another
}

// PID implements process.Handle.
func (h *handle) PID() int { return h.p.Pid }

// Wait implements process.Handle.
func (h *handle) Wait() atoll.Exit {
	state, err := h.reap()
	if err != nil {
		return atoll.Exit{Code: -1, Reason: err.Error()}
	}
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return atoll.Exit{Code: 128 + int(ws.Signal()), Signal: atoll.Signal(ws.Signal())}
	}
	return atoll.Exit{Code: ws.ExitStatus()}
}

// Signal implements process.Handle.
func (h *handle) Signal(sig atoll.Signal) error { return h.p.Signal(syscall.Signal(sig)) }

// Kill implements process.Handle.
func (h *handle) Kill() error {
	h.mu.Lock()
	if !h.reaped {
		_ = syscall.Kill(-h.p.Pid, syscall.SIGKILL) // most often that is all of them, and at once
	}
	h.mu.Unlock()
	return sweep(h.mark, h.session)
}

// session is the id of the process's session, 0 when that may be another's.
func (h *handle) session() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reaped {
		return 0
	}
	return h.p.Pid
}

// Sweep implements life.Backend.
func (backend) Sweep(id string) error {
	return sweep(mark{sandbox: id}, func() int { return 0 })
}
