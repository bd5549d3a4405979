//go:build linux

package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/interpreter"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
)

// past is a deadline that ends calls in progress.
var past = time.Unix(1, 0)

// Exec implements supervisor.Engine.
func (e *engine) Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if cmd.Durable {
		return nil, atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrUnsupported, "durable processes: snapshots of native sandboxes have no memory; use gvisor")
	}
	if len(cmd.Args) == 0 {
		table := process.NewTable()
		defer table.Close()
		shell, err := atoll.DetectShell(ctx, shellProber{e.sandbox, e, table}, cmd.User, cmd.Env)
		if err != nil {
			return nil, err
		}
		with := *cmd
		with.Args, cmd = []string{shell}, &with
	}
	return e.execIn(ctx, e.table, cmp.Or(id, atoll.NewID()[:12]), cmd)
}

// A shellProber runs commands that look around in the sandbox before a process starts. They have a table of their own, so that callers
// neither list nor find them.
type shellProber struct {
	*supervisor.Sandbox
	engine *engine
	table  *process.Table
}

// Exec starts a command.
func (s shellProber) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	return s.engine.execIn(ctx, s.table, atoll.NewID()[:12], cmd)
}

// execIn starts a command, whose Args are not empty, as a process of table.
func (e *engine) execIn(ctx context.Context, table *process.Table, id string, cmd *atoll.Command) (atoll.Process, error) {
	inside, err := e.newCommand(id, cmd)
	if err != nil {
		return nil, err
	}
	hold := time.Duration(0)
	if id == atoll.MainProcess && e.job.Spec.AutoRemove { // its reader connects after it was started
		hold = atoll.AutoRemoveDelay
	}
	p, err := table.StartHeld(ctx, id, cmd, hold, func(stdio process.Stdio) (process.Handle, error) {
		started := time.Now()
		p, err := e.init.Start(ctx, inside, [3]*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr}, nil)
		if err != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, e.execError(inside, err)
		}
		return &child{engine: e, id: id, process: p, started: started}, nil
	})
	if err == nil {
		e.refreshCovers() // the table has the process by now
		e.watchDisk()
	}
	return p, err
}

// newCommand translates cmd, with the sandbox's own defaults, for the first process.
func (e *engine) newCommand(id string, cmd *atoll.Command) (*pid1.Command, error) {
	user := cmp.Or(cmd.User, e.defaultUser())
	if !userdb.IsRoot(user) && !e.job.Caps.Users {
		return nil, atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrUnsupported, "user %q: only root exists here; run Atoll as root for other users", user)
	}
	cred, err := e.resolveUser(user)
	if err != nil {
		return nil, atoll.E("exec", e.sandbox.ID(), atoll.ErrInvalid, err)
	}
	env := []string{"PATH=" + hostroot.DefaultPath, "HOME=" + cred.Home, "HOSTNAME=" + hostName(&e.job.Spec)}
	if cmd.TTY != nil {
		env = append(env, "TERM=xterm-256color")
	}
	env = process.Environ(env, e.trustVars, e.job.Record.Env, e.job.Spec.Environ(), cmd.Env, []string{processEnv + "=" + id})
	dir := cmd.Dir
	if !path.IsAbs(dir) {
		dir = path.Join(e.job.Spec.Workdir, dir)
	}
	c := &pid1.Command{Args: cmd.Args, Env: env, Dir: dir, UID: uint32(cred.UID), GID: uint32(cred.GID), TTY: cmd.TTY != nil}
	if e.ids.count > 1 {
		c.Groups = []uint32{}
	}
	for _, g := range cred.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	name := cmd.Args[0]
	if strings.Contains(name, "/") {
		c.Programs = []string{name}
		return c, nil
	}
	for d := range strings.SplitSeq(process.Lookup(env, "PATH"), ":") {
		if path.IsAbs(d) { // never from the working directory
			c.Programs = append(c.Programs, path.Join(d, name))
		}
	}
	if len(c.Programs) == 0 {
		return nil, atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrCommandNotFound, "%q: command not found in the sandbox: its PATH has no absolute directory", name)
	}
	return c, nil
}

func (e *engine) defaultUser() string { return cmp.Or(e.job.Spec.User, e.job.Record.User) }

// resolveUser looks user up in the sandbox as it is now. Plain root, as which nearly every command runs, needs no look-up.
func (e *engine) resolveUser(user string) (userdb.User, error) {
	if userdb.IsRoot(user) {
		return userdb.Root(), nil
	}
	accounts, err := e.readAccounts("etc/passwd")
	if err != nil {
		return userdb.User{}, err
	}
	groups, err := e.readAccounts("etc/group")
	if err != nil {
		return userdb.User{}, err
	}
	return userdb.Find(user, accounts, groups)
}

const accountsLimit = 1 << 20 // bytes of a passwd or group file that are read

// readAccounts reads a file of accounts. It returns nil if there is none, because users in an image without accounts are numbers.
func (e *engine) readAccounts(name string) ([]byte, error) {
	data, err := e.readFile(name, accountsLimit)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	return data, err
}

// readFile returns a regular file of the sandbox's file system, at most limit bytes.
func (e *engine) readFile(name string, limit int) ([]byte, error) {
	fd, err := unix.Openat2(int(e.top.Fd()), strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s in the sandbox is not a regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

// execError gives the error of a start its kind.
func (e *engine) execError(cmd *pid1.Command, err error) error {
	if e.sandbox.Ended() || e.Lost(err) {
		return atoll.E("exec", e.sandbox.ID(), atoll.ErrStopped, nil)
	}
	var inside *syslist.Error
	if !errors.As(err, &inside) {
		return atoll.E("exec", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	switch name := cmd.Args[0]; {
	case inside.What == "directory":
		problem := "cannot be entered: " + inside.Err.Error()
		switch inside.Err {
		case unix.ENOENT:
			problem = "does not exist in the sandbox"
		case unix.ENOTDIR:
			problem = "is not a directory"
		case unix.EACCES:
			problem = "may not be entered by the user"
		}
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrExecFailed, "workdir %q %s", cmd.Dir, problem)
	case inside.Err == unix.EAGAIN, inside.Err == unix.ENOMEM, inside.Err == unix.EMFILE, inside.Err == unix.ENFILE:
		return atoll.E("exec", e.sandbox.ID(), atoll.ErrExhausted, err)
	case inside.What != "":
		return atoll.E("exec", e.sandbox.ID(), atoll.ErrExecFailed, err)
	case inside.Err == unix.ENOENT, inside.Err == unix.ENOTDIR:
		if missing := e.checkInterpreter(cmd); missing != nil {
			return atoll.E("exec", e.sandbox.ID(), atoll.ErrCommandNotFound, missing)
		}
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrCommandNotFound, "%q: command not found in the sandbox", name)
	case inside.Err == unix.EACCES, inside.Err == unix.ENOEXEC, inside.Err == unix.EISDIR:
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrExecFailed, "%q: not executable in the sandbox", name)
	default:
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrExecFailed, "%q: %w", name, inside.Err)
	}
}

// checkInterpreter returns an error if the program exists and its interpreter does not.
func (e *engine) checkInterpreter(cmd *pid1.Command) error {
	for _, name := range cmd.Programs {
		if !path.IsAbs(name) {
			name = path.Join(cmd.Dir, name)
		}
		if err := interpreter.Check(name, e.readFile); err != nil {
			return err
		}
	}
	return nil
}

// A child is the process.Handle of a child of the first process.
type child struct {
	engine  *engine
	id      string
	process *pid1.Process
	started time.Time
	stopped atomic.Bool // Kill was called, so lack of memory is not the reason of its end
}

// PID implements process.Handle.
func (c *child) PID() int { return c.process.PID }

// Wait implements process.Handle.
func (c *child) Wait() atoll.Exit {
	status, err := c.process.Wait()
	exit := atoll.Exit{Code: status.ExitStatus()}
	switch {
	case err != nil:
		exit = atoll.Exit{Code: codeKilled, Signal: atoll.SIGKILL, Reason: c.engine.killReason()}
	case status.Signaled():
		exit = atoll.Exit{Code: 128 + int(status.Signal()), Signal: atoll.Signal(status.Signal())}
	}
	if exit.Code == codeKilled && err == nil && !c.stopped.Load() {
		switch e := c.engine; {
		case e.disk.endedSince(c.started):
			exit.Reason = e.disk.explainEnd()
		case e.takeOOMKill():
			exit.Reason = "out of memory: the sandbox used more than " + e.job.Spec.Resources.Memory.String()
		}
	}
	exit.Duration = atoll.Duration(time.Since(c.started))
	return exit
}

// codeKilled is the exit code of a program that SIGKILL ended, and of a shell whose last command it ended.
const codeKilled = 128 + int(atoll.SIGKILL)

// takeOOMKill reports whether the kernel has killed a process for lack of memory that has not been reported yet.
func (e *engine) takeOOMKill() bool {
	if e.job.Spec.Resources.Memory <= 0 {
		return false
	}
	for kills := e.sandbox.Group.OOMKills(); ; {
		n := e.oomKills.Load()
		if n >= kills {
			return false
		}
		if e.oomKills.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// killReason says why a process ended whose exit status is lost.
func (e *engine) killReason() string {
	if e.sandbox.Ending() && !e.sandbox.Group.OOMKilled() {
		return "killed with its sandbox"
	}
	<-e.exited
	return e.sandbox.DeathReason()
}

// Signal implements process.Handle.
func (c *child) Signal(sig atoll.Signal) error {
	if c.engine.sandbox.Paused() {
		return atoll.Errorf("signal", c.id, atoll.ErrConflict, "the sandbox is paused: resume it first")
	}
	if err := c.engine.init.Signal(c.process.PID, unix.Signal(sig)); err != nil {
		return atoll.E("signal", c.id, atoll.ErrStopped, err)
	}
	return nil
}

// Kill implements process.Handle.
func (c *child) Kill() error {
	c.stopped.Store(true)
	if c.engine.sandbox.Ended() {
		return nil
	}
	err := c.engine.killTree(c.process.PID, c.id)
	if err != nil && c.engine.sandbox.Ended() {
		return nil // meanwhile the sandbox ended with its main process
	}
	return err
}

var _ process.Handle = (*child)(nil)

// openTerminal opens a terminal of the sandbox, so that it has a name inside.
func (e *engine) openTerminal() (master, replica *os.File, err error) {
	var fd int
	err = e.ids.actInside(func() (err error) { // whose terminal it is
		fd, err = unix.Openat2(int(e.top.Fd()), "dev/pts/ptmx", &unix.OpenHow{
			Flags: unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
		})
		return err
	})
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/pts/ptmx", Err: err}
	}
	master = os.NewFile(uintptr(fd), "/dev/pts/ptmx")
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, os.NewSyscallError("unlock terminal", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, os.NewSyscallError("open terminal", errno)
	}
	return master, os.NewFile(peer, "terminal"), nil
}
