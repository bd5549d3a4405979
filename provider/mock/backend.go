package mock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/interpreter"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

// A backend is an inprocess.Backend. It has the processes of all sandboxes and, in memory, the files
// that they wrote outside their work directories.
type backend struct {
	programs map[string]Program

	mu    sync.Mutex
	pid   int
	procs map[int]*Proc
	roots map[string]map[string][]byte // files by sandbox id and absolute name
}

func newBackend(programs map[string]Program) *backend {
	w := &backend{programs: maps.Clone(builtins), pid: 100, procs: map[int]*Proc{}, roots: map[string]map[string][]byte{}}
	maps.Copy(w.programs, programs)
	return w
}

// OwnUser implements inprocess.Backend.
func (w *backend) OwnUser(user string) bool { return user == "" }

// Shell implements inprocess.Backend.
func (w *backend) Shell(pl *inprocess.Place, cmd *atoll.Command) string { return "/bin/sh" }

// Start implements inprocess.Backend.
func (w *backend) Start(ctx context.Context, pl *inprocess.Place, cmd *atoll.Command, stdio process.Stdio) (process.Handle, error) {
	program, err := w.findProgram(pl, cmd.Args[0])
	if err != nil {
		return nil, err
	}
	dir := cmd.Dir
	if !path.IsAbs(dir) {
		dir = path.Join(pl.Spec.Workdir, dir)
	}
	if info, err := os.Stat(pl.HostPath(dir)); dir != "/" && (pl.HostPath(dir) == dir || err != nil || !info.IsDir()) {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrExecFailed, "working directory %q: not a directory", cmd.Dir)
	}
	uid, gid, err := resolveUser(cmd.User, pl.Spec.User)
	if err != nil {
		return nil, atoll.E("exec", pl.ID, atoll.ErrExecFailed, err)
	}
	var files [3]*os.File
	for i, f := range []*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr} {
		if files[i], err = duplicateFile(f); err != nil {
			for _, f := range files[:i] {
				f.Close()
			}
			return nil, atoll.E("exec", pl.ID, atoll.ErrExhausted, err)
		}
	}
	base := []string{"PATH=/bin", "HOME=" + pl.Prefix, "USER=" + strconv.Itoa(uid)}
	if cmd.TTY != nil {
		base = append(base, "TERM=xterm-256color")
	}
	p := w.newProc(&Proc{
		Args: slices.Clone(cmd.Args), Env: process.Environ(base, pl.Spec.Environ(), cmd.Env), Dir: path.Clean(dir), UID: uid, GID: gid,
		sandboxID: pl.ID, prefix: pl.Prefix, dir: pl.Dir, tty: cmd.TTY != nil,
	}, files)
	go p.runProgram(program)
	return handle{p}, nil
}

// newProc adds a process to the table, with the arguments and environment of like.
func (w *backend) newProc(like *Proc, files [3]*os.File) *Proc {
	p := &Proc{
		Args: like.Args, Env: like.Env, Dir: like.Dir, UID: like.UID, GID: like.GID,
		backend: w, sandboxID: like.sandboxID, prefix: like.prefix, dir: like.dir, tty: like.tty,
		Stdin: strings.NewReader(""), Stdout: files[1], Stderr: files[2],
		files: files, done: make(chan struct{}), signals: map[atoll.Signal]chan atoll.Signal{},
	}
	if files[0] != nil {
		p.Stdin = files[0]
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pid++
	p.PID = w.pid
	w.procs[p.PID] = p
	return p
}

func (w *backend) deleteProc(p *Proc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.procs, p.PID)
}

// readerOf returns a function that reads the files of a sandbox. Outside of its volume are only the programs.
func (w *backend) readerOf(pl *inprocess.Place) func(name string, limit int) ([]byte, error) {
	return func(name string, limit int) ([]byte, error) {
		if w.lookUp(name) != nil {
			return nil, nil
		}
		host := pl.HostPath(name)
		if host == name {
			return nil, fs.ErrNotExist
		}
		data, err := os.ReadFile(host)
		return data[:min(len(data), limit)], err
	}
}

// lookUp returns the program with this name, or nil.
func (w *backend) lookUp(name string) Program {
	base, dir := path.Base(name), path.Dir(name)
	known := !strings.Contains(name, "/") || slices.Contains([]string{"/bin", "/usr/bin"}, dir)
	if program, ok := w.programs[base]; ok && known {
		return program
	}
	return w.programs[name]
}

// findProgram returns the program with this name. Kinds: ErrExecFailed, ErrCommandNotFound.
func (w *backend) findProgram(pl *inprocess.Place, name string) (Program, error) {
	if program := w.lookUp(name); program != nil {
		return program, nil
	}
	if path.Clean(name) == "/" {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrExecFailed, "%q: is a directory", name)
	}
	if strings.Contains(name, "/") {
		if missing := interpreter.Check(name, w.readerOf(pl)); missing != nil {
			return nil, atoll.E("exec", pl.ID, atoll.ErrCommandNotFound, missing)
		}
	}
	return nil, atoll.Errorf("exec", pl.ID, atoll.ErrCommandNotFound, "%q: no such command", name)
}

// resolveUser returns the ids of the first user that is not empty, or those of root.
func resolveUser(users ...string) (uid, gid int, err error) {
	for _, u := range users {
		switch user, group, both := strings.Cut(u, ":"); {
		case u == "":
			continue
		case u == "root":
			return 0, 0, nil
		default:
			if uid, err = strconv.Atoi(user); err == nil && both {
				gid, err = strconv.Atoi(group)
			}
			if err != nil {
				return 0, 0, errors.New("no user " + strconv.Quote(u))
			}
			return uid, gid, nil
		}
	}
	return 0, 0, nil
}

// Sweep implements inprocess.Backend.
func (w *backend) Sweep(id string) error {
	w.mu.Lock()
	var left []*Proc
	for _, p := range w.procs {
		if p.sandboxID == id {
			left = append(left, p)
		}
	}
	w.mu.Unlock()
	for _, p := range left {
		p.killTree()
		<-p.done
	}
	return nil
}

// Removed implements inprocess.Backend.
func (w *backend) Removed(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.roots, id)
}

// hasProcess reports whether a sandbox has a process with this pid.
func (w *backend) hasProcess(sandboxID string, pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.procs[pid]
	return p != nil && p.sandboxID == sandboxID
}

// killProcess kills a process of a sandbox. It returns false if the sandbox has no such process.
func (w *backend) killProcess(sandboxID string, pid int) bool {
	w.mu.Lock()
	p := w.procs[pid]
	w.mu.Unlock()
	if p == nil || p.sandboxID != sandboxID {
		return false
	}
	_ = p.Signal(atoll.SIGKILL) // never fails
	return true
}

// hostPath returns the absolute name of a file and, if ok, its path on the machine. ok is false
// outside the work directory.
func (p *Proc) hostPath(name string) (abs, host string, ok bool) {
	if !path.IsAbs(name) {
		name = path.Join(p.Dir, name)
	}
	name = path.Clean(name)
	rel, ok := strings.CutPrefix(name+"/", p.prefix+"/")
	return name, filepath.Join(p.dir, rel), ok
}

// Open opens a file of the sandbox for reading. The caller must close it.
func (p *Proc) Open(name string) (io.ReadCloser, error) {
	abs, host, ok := p.hostPath(name)
	if ok {
		return os.Open(host)
	}
	p.backend.mu.Lock()
	defer p.backend.mu.Unlock()
	content, ok := p.backend.roots[p.sandboxID][abs]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// ReadFile returns the content of a file of the sandbox.
func (p *Proc) ReadFile(name string) ([]byte, error) {
	f, err := p.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// WriteFile creates or replaces a file of the sandbox.
func (p *Proc) WriteFile(name string, content []byte) error {
	abs, host, ok := p.hostPath(name)
	if ok {
		return os.WriteFile(host, content, 0o644)
	}
	p.backend.mu.Lock()
	defer p.backend.mu.Unlock()
	if p.backend.roots[p.sandboxID] == nil {
		p.backend.roots[p.sandboxID] = map[string][]byte{}
	}
	p.backend.roots[p.sandboxID][abs] = content
	return nil
}

var _ inprocess.Backend = (*backend)(nil)
