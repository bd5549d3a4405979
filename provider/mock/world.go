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
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/internal/inprocess"
)

// A world is the backend: the processes of all sandboxes, and what they wrote
// outside of their work directories, which is kept in memory.
type world struct {
	programs map[string]Program

	mu    sync.Mutex
	pid   int
	procs map[int]*Proc
	roots map[string]map[string][]byte // files by sandbox and name
}

func newWorld(programs map[string]Program) *world {
	w := &world{programs: maps.Clone(builtins), pid: 100, procs: map[int]*Proc{}, roots: map[string]map[string][]byte{}}
	maps.Copy(w.programs, programs)
	return w
}

// OwnUser implements inprocess.Backend.
func (w *world) OwnUser(user string) bool { return user == "" }

// Shell implements inprocess.Backend.
func (w *world) Shell(pl *inprocess.Place, cmd *atoll.Command) string { return "/bin/sh" }

// Start implements inprocess.Backend.
func (w *world) Start(ctx context.Context, pl *inprocess.Place, cmd *atoll.Command, stdio process.Stdio) (process.Handle, error) {
	program, err := w.find(pl, cmd.Args[0])
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
	uid, gid, err := identify(cmd.User, pl.Spec.User)
	if err != nil {
		return nil, atoll.E("exec", pl.ID, atoll.ErrExecFailed, err)
	}
	var files [3]*os.File
	for i, f := range []*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr} {
		if files[i], err = dup(f); err != nil {
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
		Args: slices.Clone(cmd.Args), Env: process.Environ(base, pl.Spec.Env, cmd.Env), Dir: path.Clean(dir), UID: uid, GID: gid,
		box: pl.ID, place: pl.Prefix, dir: pl.Dir, tty: cmd.TTY != nil,
	}, files)
	go p.run(program)
	return handle{p}, nil
}

// newProc enters a process like another one in the table.
func (w *world) newProc(like *Proc, files [3]*os.File) *Proc {
	p := &Proc{
		Args: like.Args, Env: like.Env, Dir: like.Dir, UID: like.UID, GID: like.GID,
		world: w, box: like.box, place: like.place, dir: like.dir, tty: like.tty,
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

func (w *world) gone(p *Proc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.procs, p.PID)
}

// find looks a program up.
func (w *world) find(pl *inprocess.Place, name string) (Program, error) {
	base, dir := path.Base(name), path.Dir(name)
	known := !strings.Contains(name, "/") || slices.Contains([]string{"/bin", "/usr/bin"}, dir)
	if program, ok := w.programs[base]; ok && known {
		return program, nil
	}
	if program, ok := w.programs[name]; ok {
		return program, nil
	}
	if path.Clean(name) == "/" {
		return nil, atoll.Errorf("exec", pl.ID, atoll.ErrExecFailed, "%q: is a directory", name)
	}
	return nil, atoll.Errorf("exec", pl.ID, atoll.ErrCommandNotFound, "%q: no such command", name)
}

// identify is who a process is: the command's user, else the spec's, else root.
func identify(users ...string) (uid, gid int, err error) {
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
func (w *world) Sweep(id string) error {
	w.mu.Lock()
	var left []*Proc
	for _, p := range w.procs {
		if p.box == id {
			left = append(left, p)
		}
	}
	w.mu.Unlock()
	for _, p := range left {
		p.kill()
		<-p.done
	}
	return nil
}

// Removed implements inprocess.Backend.
func (w *world) Removed(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.roots, id)
}

// alive reports whether a sandbox has such a process.
func (w *world) alive(box string, pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.procs[pid]
	return p != nil && p.box == box
}

// hit kills a process of a sandbox, if it has such a one.
func (w *world) hit(box string, pid int) bool {
	w.mu.Lock()
	p := w.procs[pid]
	w.mu.Unlock()
	if p == nil || p.box != box {
		return false
	}
	_ = p.Signal(atoll.SIGKILL) // never fails
	return true
}

// host is the real file for a name in the work directory.
func (p *Proc) host(name string) (abs, host string, ok bool) {
	if !path.IsAbs(name) {
		name = path.Join(p.Dir, name)
	}
	name = path.Clean(name)
	rel, ok := strings.CutPrefix(name+"/", p.place+"/")
	return name, filepath.Join(p.dir, rel), ok
}

// Open opens a file of the sandbox for reading.
func (p *Proc) Open(name string) (io.ReadCloser, error) {
	abs, host, ok := p.host(name)
	if ok {
		return os.Open(host)
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	content, ok := p.world.roots[p.box][abs]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// ReadFile returns what a file of the sandbox holds.
func (p *Proc) ReadFile(name string) ([]byte, error) {
	f, err := p.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// WriteFile stores a file in the sandbox.
func (p *Proc) WriteFile(name string, content []byte) error {
	abs, host, ok := p.host(name)
	if ok {
		return os.WriteFile(host, content, 0o644)
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.world.roots[p.box] == nil {
		p.world.roots[p.box] = map[string][]byte{}
	}
	p.world.roots[p.box][abs] = content
	return nil
}

var _ inprocess.Backend = (*world)(nil)
