//go:build linux

package sentry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/interpreter"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// Exec implements supervisor.Engine.
func (e *engine) Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if len(cmd.Args) == 0 {
		shell, err := e.detectShell(ctx, cmd)
		if err != nil {
			return nil, err
		}
		with := *cmd
		with.Args, cmd = []string{shell}, &with
	}
	return e.execIn(ctx, e.table, cmp.Or(id, atoll.NewID()[:12]), cmd)
}

// execIn starts a command, whose Args are not empty, as a process of table.
func (e *engine) execIn(ctx context.Context, table *process.Table, id string, cmd *atoll.Command) (atoll.Process, error) {
	args, err := e.execArgs(ctx, id, cmd)
	if err != nil {
		return nil, err
	}
	if cmd.Durable || cmd.TTY != nil { // only a terminal of the sandbox's own kernel has a name there
		return e.execInside(ctx, table, id, cmd, args)
	}
	return table.StartHeld(ctx, id, cmd, e.outputHold(id), func(stdio process.Stdio) (process.Handle, error) {
		args.FilePayload = control.NewFilePayload(map[int]*os.File{0: stdio.Stdin, 1: stdio.Stdout, 2: stdio.Stderr}, nil)
		started := time.Now()
		pid, err := e.sentry.execProgram(ctx, args)
		if err != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, e.execError(args, err)
		}
		return &program{engine: e, id: id, pid: pid, started: started}, nil
	})
}

// detectShell returns the shell for a terminal without a command.
func (e *engine) detectShell(ctx context.Context, cmd *atoll.Command) (string, error) {
	table := process.NewTable()
	defer table.Close()
	return atoll.DetectShell(ctx, shellProber{e.sandbox, e, table}, cmd.User, cmd.Env)
}

// A shellProber runs commands that look around in the sandbox before a process starts. They
// have a table of their own, so that callers neither list nor find them.
type shellProber struct {
	*supervisor.Sandbox
	engine *engine
	table  *process.Table
}

// Exec starts a command.
func (s shellProber) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	return s.engine.execIn(ctx, s.table, atoll.NewID()[:12], cmd)
}

// outputHold returns the time for which a process's output is kept for its first reader.
// The reader of the main process of an AutoRemove sandbox connects after that was started.
func (e *engine) outputHold(id string) time.Duration {
	if id == atoll.MainProcess && e.job.Spec.AutoRemove {
		return atoll.AutoRemoveDelay
	}
	return 0
}

// execArgs translates cmd, with the sandbox's own defaults, for gVisor.
func (e *engine) execArgs(ctx context.Context, id string, cmd *atoll.Command) (*control.ExecArgs, error) {
	user := cmd.User
	if user == "" {
		user = e.defaultUser()
	}
	if plain := userdb.IsRoot(user); !plain && !e.job.Caps.Users {
		return nil, atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrUnsupported, "user %q: only root exists without privileges; run Atoll as root for other users", user)
	}
	cred, err := e.resolveUser(ctx, user)
	if err != nil {
		return nil, atoll.E("exec", e.sandbox.ID(), userKind(err), err)
	}
	env := e.buildEnv(cred, id, cmd)
	dir := cmd.Dir
	if !path.IsAbs(dir) {
		dir = path.Join(e.job.Spec.Workdir, dir)
	}
	args, err := credArgs(cred)
	if err != nil {
		return nil, atoll.E("exec", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	// gVisor only checks that it exists; the dot makes it look for a directory that
	// the user may enter.
	args.Argv, args.Envv, args.WorkingDirectory = cmd.Args, env, dir+"/."
	return args, nil
}

// credArgs returns the arguments of a program that runs as cred: only root has
// capabilities, and nobody gains any.
func credArgs(cred userdb.User) (*control.ExecArgs, error) {
	caps, err := specutils.Capabilities(false, ociCaps(rootCapabilities))
	if err != nil {
		return nil, err
	}
	if cred.UID != 0 {
		caps.EffectiveCaps, caps.PermittedCaps = 0, 0
	}
	args := &control.ExecArgs{
		KUID: auth.KUID(cred.UID), KGID: auth.KGID(cred.GID), Capabilities: caps, NoNewPrivileges: true,
	}
	for _, g := range cred.Groups {
		args.ExtraKGIDs = append(args.ExtraKGIDs, auth.KGID(g))
	}
	return args, nil
}

// buildEnv merges environments, each later one winning: what every process needs, the
// image's, the spec's, the command's.
func (e *engine) buildEnv(cred userdb.User, id string, cmd *atoll.Command) []string {
	env := []string{"PATH=" + hostroot.DefaultPath, "HOME=" + cred.Home, "HOSTNAME=" + sandboxHostname(&e.job.Spec)}
	if cmd.TTY != nil {
		env = append(env, "TERM=xterm-256color")
	}
	return process.Environ(env, e.trustVars, e.job.Record.Env, e.job.Spec.Environ(), cmd.Env, []string{processEnv + "=" + id})
}

func (e *engine) defaultUser() string {
	if e.job.Spec.User != "" {
		return e.job.Spec.User
	}
	return e.job.Record.User
}

// resolveUser looks user up in the sandbox as it is now. Plain root, as which nearly every
// command runs, needs no look-up.
func (e *engine) resolveUser(ctx context.Context, user string) (userdb.User, error) {
	if userdb.IsRoot(user) {
		return userdb.Root(), nil
	}
	accounts, err := e.readAccounts(ctx, "/etc/passwd")
	if err != nil {
		return userdb.User{}, err
	}
	groups, err := e.readAccounts(ctx, "/etc/group")
	if err != nil {
		return userdb.User{}, err
	}
	return userdb.Find(user, accounts, groups)
}

// accountsTimeout bounds the time of reading a file of accounts.
const accountsTimeout = 5 * time.Second

// readAccounts reads a file of accounts. It returns nil if there is none, because users in
// an image without accounts are numbers.
func (e *engine) readAccounts(ctx context.Context, name string) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, accountsTimeout)
	defer cancel()
	data, err := e.sentry.readFile(bounded, name, accountsLimit)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if bounded.Err() != nil {
		return nil, fmt.Errorf("%s in the sandbox cannot be read within %s: is it a regular file?", name, accountsTimeout)
	}
	if err != nil {
		return nil, nil
	}
	return data, nil
}

// userKind returns the kind of an error of resolveUser.
func userKind(err error) atoll.Kind {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return atoll.KindOf(err)
	}
	return atoll.ErrInvalid
}

const accountsLimit = 1 << 20 // bytes of a passwd or group file that are read

// execError finds the kind of a failed start, which gVisor reports as text only.
func (e *engine) execError(args *control.ExecArgs, err error) error {
	if e.sandbox.Ended() || e.sentry.isLost(err) {
		return atoll.E("exec", e.sandbox.ID(), atoll.ErrStopped, nil)
	}
	name, text := args.Argv[0], err.Error()
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	switch {
	case has("working directory", "setting up cwd"):
		dir, problem := strings.TrimSuffix(args.WorkingDirectory, "/."), "does not exist in the sandbox"
		if has("not a directory") {
			problem = "is not a directory"
		} else if has("permission denied") {
			problem = "may not be entered by the user"
		}
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrExecFailed, "workdir %q %s", dir, problem)
	case has("no such file", "not found", "not a directory"):
		if missing := e.checkInterpreter(args); missing != nil {
			return atoll.E("exec", e.sandbox.ID(), atoll.ErrCommandNotFound, missing)
		}
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrCommandNotFound, "%q: command not found in the sandbox", name)
	case has("permission denied", "exec format", "is a directory"):
		return atoll.Errorf("exec", e.sandbox.ID(), atoll.ErrExecFailed, "%q: not executable in the sandbox", name)
	case has("too many", "resource temporarily unavailable", "try again"):
		return atoll.E("exec", e.sandbox.ID(), atoll.ErrExhausted, err)
	}
	return atoll.E("exec", e.sandbox.ID(), atoll.ErrExecFailed, err)
}

// checkInterpreter returns an error if the program exists and its interpreter does not.
func (e *engine) checkInterpreter(args *control.ExecArgs) error {
	ctx, cancel := context.WithTimeout(context.Background(), accountsTimeout)
	defer cancel()
	read := func(name string, limit int) ([]byte, error) { return e.sentry.readFile(ctx, name, int64(limit)) }
	name := args.Argv[0]
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join(args.WorkingDirectory, name)
		}
		return interpreter.Check(name, read)
	}
	for dir := range strings.SplitSeq(process.Lookup(args.Envv, "PATH"), ":") {
		if err := interpreter.Check(path.Join("/", dir, name), read); err != nil {
			return err
		}
	}
	return nil
}

// A program is the process.Handle of a program that gVisor's Execute started.
type program struct {
	engine  *engine
	id      string
	pid     int32
	started time.Time
	stopped atomic.Bool // Kill was called, so lack of memory is not the reason of its end
}

// PID returns the program's PID inside.
func (p *program) PID() int { return int(p.pid) }

// Wait blocks until the program, or the sentry, has ended.
func (p *program) Wait() atoll.Exit {
	status, err := p.engine.sentry.waitProgram(p.pid)
	return p.engine.explainExit(p.pid, p.started, status, err, p.stopped.Load())
}

// explainExit returns the exit of a process from its wait status, or from the error of the wait.
func (e *engine) explainExit(pid int32, started time.Time, status syscall.WaitStatus, err error, stopped bool) atoll.Exit {
	exit := exitOf(status)
	if reason := e.guard.takeReason(pid, started); exit.Code == codeKilled && !stopped {
		exit.Reason = reason
	}
	if err != nil {
		exit = atoll.Exit{Code: 137, Signal: atoll.SIGKILL, Reason: e.killReason()}
	}
	exit.Duration = atoll.Duration(time.Since(started))
	return exit
}

// codeKilled is the exit code of a program that SIGKILL ended, and of a shell whose last command it
// ended.
const codeKilled = 128 + int(atoll.SIGKILL)

// killReason says why a program ended whose exit status is lost.
func (e *engine) killReason() string {
	if e.sandbox.Ending() && !e.sandbox.Group.OOMKilled() {
		return "killed with its sandbox"
	}
	return e.sandbox.DeathReason()
}

// Signal sends sig to the program alone.
func (p *program) Signal(sig atoll.Signal) error {
	return p.engine.signalProcess(p.id, p.pid, sig, p.engine.sentry.signalProcess)
}

// signalProcess sends sig to a process, by send.
func (e *engine) signalProcess(id string, pid int32, sig atoll.Signal, send func(int32, atoll.Signal) error) error {
	if e.sandbox.Paused() {
		return atoll.Errorf("signal", id, atoll.ErrConflict, "the sandbox is paused: resume it first")
	}
	if err := send(pid, sig); err != nil {
		return atoll.E("signal", id, atoll.ErrStopped, err)
	}
	return nil
}

// Kill ends the program and all that it started.
func (p *program) Kill() error {
	p.stopped.Store(true)
	return p.engine.killProcess(p.id, p.pid)
}

// killProcess ends a process and all that it started.
func (e *engine) killProcess(id string, pid int32) error {
	if e.sandbox.Ended() {
		return nil
	}
	err := e.sentry.killTree(pid, id)
	if err != nil && e.sandbox.Ended() {
		return nil // meanwhile the sandbox ended with its main process
	}
	return err
}

// exitOf translates a wait status.
func exitOf(status syscall.WaitStatus) atoll.Exit {
	if status.Signaled() {
		return atoll.Exit{Code: 128 + int(status.Signal()), Signal: atoll.Signal(status.Signal())}
	}
	return atoll.Exit{Code: status.ExitStatus()}
}

var _ process.Handle = (*program)(nil)
