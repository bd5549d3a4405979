//go:build unix

// Package procgroup starts processes of this machine, each in a session of its own, and
// ends them with all their descendants.
package procgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A Program is what to start.
type Program struct {
	Mark Mark     // added to Env, so that who descends from it is found
	Args []string // Args[0] is looked up in the PATH of Env when it has no slash
	Env  []string
	Dir  string              // absolute; checked by the caller
	TTY  bool                // stdin is its controlling terminal
	As   *syscall.Credential // nil: as this process
}

// Start starts p with io as its stdio. Kinds: ErrCommandNotFound,
// ErrExecFailed, ErrExhausted.
func Start(p *Program, io process.Stdio) (*Process, error) {
	return p.start(io, func(start func()) { start() })
}

// start has the process cloned by the thread on which clone calls what it is
// given.
func (p *Program) start(io process.Stdio, clone func(start func())) (*Process, error) {
	env := process.Environ(p.Env, []string{p.Mark.String()})
	name := p.Args[0]
	path, err := find(name, process.Lookup(env, "PATH"), p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("exec", p.Mark.sandbox, atoll.ErrCommandNotFound, "%q: no such command", name)
	}
	if err != nil {
		return nil, p.failed(err)
	}
	attr := &os.ProcAttr{
		Dir:   p.Dir,
		Env:   env,
		Files: []*os.File{io.Stdin, io.Stdout, io.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.TTY, Credential: p.As},
	}
	var started *os.Process
	clone(func() { started, err = os.StartProcess(path, p.Args, attr) })
	if err != nil {
		return nil, p.failed(err)
	}
	return &Process{p: started, mark: p.Mark, tty: p.TTY, mu: new(sync.Mutex)}, nil
}

// failed is the error of a program that is there.
func (p *Program) failed(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	kind := atoll.ErrExecFailed
	for _, no := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, no) {
			kind = atoll.ErrExhausted
		}
	}
	return atoll.Errorf("exec", p.Mark.sandbox, kind, "%q: %w", p.Args[0], err)
}

// find is exec.LookPath for another PATH and working directory than those of
// this process.
func find(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, Executable(name)
	}
	failed := error(fs.ErrNotExist)
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue // never from the directory that happens to be the current one
		}
		full := filepath.Join(d, name)
		err := Executable(full)
		if err == nil {
			return full, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			failed = err
		}
	}
	return "", failed
}

// Executable says why the file cannot be executed, fs.ErrNotExist when it is
// not there.
func Executable(name string) error {
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

// A Process is one that Start started, and a process.Handle.
type Process struct {
	p    *os.Process
	mark Mark
	tty  bool // it leads the session of a terminal

	mu     sync.Locker
	reaped bool                    // its PID may belong to another
	status chan syscall.WaitStatus // from an Init, once; nil for one that is waited for
}

// PID implements process.Handle.
func (h *Process) PID() int { return h.p.Pid }

// Wait implements process.Handle.
func (h *Process) Wait() atoll.Exit {
	ws, err := h.wait()
	if err != nil {
		return atoll.Exit{Code: -1, Reason: err.Error()}
	}
	if ws.Signaled() {
		return atoll.Exit{Code: 128 + int(ws.Signal()), Signal: atoll.Signal(ws.Signal())}
	}
	return atoll.Exit{Code: ws.ExitStatus()}
}

func (h *Process) wait() (syscall.WaitStatus, error) {
	if h.status != nil {
		return <-h.status, nil
	}
	state, err := h.reap()
	if err != nil {
		return 0, err
	}
	return state.Sys().(syscall.WaitStatus), nil
}

// Signal implements process.Handle.
func (h *Process) Signal(sig atoll.Signal) error { return h.p.Signal(syscall.Signal(sig)) }

// Kill implements process.Handle.
func (h *Process) Kill() error {
	h.mu.Lock()
	if !h.reaped {
		_ = syscall.Kill(-h.p.Pid, syscall.SIGKILL) // most often that is all of them, and at once
	}
	h.mu.Unlock()
	return sweep(h.mark, h.session)
}

// session is the id of the process's session, 0 when that may be another's.
func (h *Process) session() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reaped {
		return 0
	}
	return h.p.Pid
}

// Sweep ends all processes that bear a mark of the sandbox of a realm.
func Sweep(realm, sandbox string) error {
	return sweep(Mark{realm: realm, sandbox: sandbox}, func() int { return 0 })
}

var _ process.Handle = (*Process)(nil)
