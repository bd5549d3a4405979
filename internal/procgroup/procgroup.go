//go:build unix

// Package procgroup starts processes of this machine, each in a session of its own, and
// ends them with all their descendants.
package procgroup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/interpreter"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// A Program is a program to start.
type Program struct {
	Mark Mark     // added to Env, to find the descendants
	Args []string // Args[0] is looked up in the PATH of Env when it has no slash
	Env  []string
	Dir  string              // absolute; checked by the caller
	TTY  bool                // stdin is its controlling terminal
	Wrap []string            // if not empty, a command that executes the command that follows it: sandbox-exec and its like
	As   *syscall.Credential // nil: as this process
}

// Start starts p with stdio. Kinds: ErrCommandNotFound,
// ErrExecFailed, ErrExhausted.
func Start(p *Program, stdio process.Stdio) (*Process, error) {
	return p.startProcess(stdio, func(start func()) { start() })
}

// startProcess starts p. clone calls the function it is given on the thread that is to
// clone the process.
func (p *Program) startProcess(stdio process.Stdio, clone func(start func())) (*Process, error) {
	env := process.Environ(p.Env, []string{p.Mark.String()})
	name := p.Args[0]
	path, err := lookPath(name, process.Lookup(env, "PATH"), p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("exec", p.Mark.sandbox, atoll.ErrCommandNotFound, "%q: no such command", name)
	}
	if err != nil {
		return nil, p.startError(err)
	}
	args := p.Args
	if len(p.Wrap) > 0 { // which reports errors of the program by its exit code alone
		if missing := interpreter.Check(path, readHead); missing != nil {
			return nil, atoll.E("exec", p.Mark.sandbox, atoll.ErrCommandNotFound, missing)
		}
		args = slices.Concat(p.Wrap, []string{path}, p.Args[1:])
		path = p.Wrap[0]
	}
	attr := &os.ProcAttr{
		Dir:   p.Dir,
		Env:   env,
		Files: []*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.TTY, Credential: p.As},
	}
	var started *os.Process
	clone(func() { started, err = os.StartProcess(path, args, attr) })
	if errors.Is(err, fs.ErrNotExist) {
		if missing := interpreter.Check(path, readHead); missing != nil {
			return nil, atoll.E("exec", p.Mark.sandbox, atoll.ErrCommandNotFound, missing)
		}
	}
	if err != nil {
		return nil, p.startError(err)
	}
	return &Process{p: started, mark: p.Mark, tty: p.TTY, mu: new(sync.Mutex)}, nil
}

// readHead returns the first bytes of a file, at most limit.
func readHead(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

// startError gives the failure to start an existing program its kind.
func (p *Program) startError(err error) error {
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

// lookPath is exec.LookPath for a given PATH and working directory.
func lookPath(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, Executable(name)
	}
	failed := error(fs.ErrNotExist)
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue // never from the working directory
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

// Executable returns an error if the file cannot be executed: fs.ErrNotExist if it does not
// exist.
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

// A Process is a process that Start has started. It implements process.Handle.
type Process struct {
	p    *os.Process
	mark Mark
	tty  bool // it is the session leader of a terminal

	mu     sync.Locker
	reaped bool                    // its PID may belong to another process
	status chan syscall.WaitStatus // from an Init, once; nil without an Init
}

// PID implements process.Handle.
func (h *Process) PID() int { return h.p.Pid }

// Wait implements process.Handle.
func (h *Process) Wait() atoll.Exit {
	ws, err := h.waitStatus()
	if err != nil {
		return atoll.Exit{Code: -1, Reason: err.Error()}
	}
	if ws.Signaled() {
		return atoll.Exit{Code: 128 + int(ws.Signal()), Signal: atoll.Signal(ws.Signal())}
	}
	return atoll.Exit{Code: ws.ExitStatus()}
}

func (h *Process) waitStatus() (syscall.WaitStatus, error) {
	if h.status != nil {
		return <-h.status, nil
	}
	state, err := h.reapProcess()
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
		_ = syscall.Kill(-h.p.Pid, syscall.SIGKILL) // most often this kills all of them at once
	}
	h.mu.Unlock()
	return sweepMarked(h.mark, h.sessionID)
}

// sessionID returns the id of the process's session, 0 if another session may have that id.
func (h *Process) sessionID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reaped {
		return 0
	}
	return h.p.Pid
}

// Sweep kills all processes with a mark of the sandbox in a realm.
func Sweep(realm, sandbox string) error {
	return sweepMarked(Mark{realm: realm, sandbox: sandbox}, func() int { return 0 })
}

var _ process.Handle = (*Process)(nil)
