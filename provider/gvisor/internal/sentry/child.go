//go:build linux

package sentry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/pid1"
)

// gVisor ends, in a sandbox from a snapshot, all that its control socket executed, and a terminal
// of the host has no name inside. So durable processes, and those with a terminal, are children of
// the first process, which starts them with streams of the sandbox's own kernel.

// connectInit returns a client of the first process of a sandbox, and the files that it needs.
func connectInit(saved int, late func(int)) (*pid1.Init, map[int]*os.File, error) {
	theirRequests, requests, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	replies, theirReplies, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, theirRequests.Close(), requests.Close())
	}
	init, err := pid1.Connect(requests, replies, saved, late)
	return init, map[int]*os.File{pid1.RequestFD: theirRequests, pid1.ReplyFD: theirReplies}, err
}

// A child is the process.Handle of a child of the first process.
type child struct {
	engine  *engine
	id      string
	cmd     *atoll.Command
	process *pid1.Process
	started time.Time   // also in another sandbox, of which this one is a copy
	began   time.Time   // in this sandbox
	stopped atomic.Bool // Kill was called
}

// execInside has the first process start a process.
func (e *engine) execInside(ctx context.Context, table *process.Table, id string, cmd *atoll.Command, args *control.ExecArgs) (atoll.Process, error) {
	inside := &pid1.Command{
		Args: args.Argv, Env: args.Envv, Dir: filepath.Dir(args.WorkingDirectory), Path: process.Lookup(args.Envv, "PATH"),
		UID: uint32(args.KUID), GID: uint32(args.KGID), TTY: cmd.TTY != nil, Stdin: cmd.Stdin != nil || cmd.OpenStdin,
	}
	for _, g := range args.ExtraKGIDs {
		inside.Groups = append(inside.Groups, uint32(g))
	}
	if cmd.TTY != nil {
		inside.Rows, inside.Cols = cmd.TTY.Rows, cmd.TTY.Cols
	}
	return e.startChild(ctx, table, id, cmd, time.Now(), func(streams pid1.Streams) (*pid1.Process, error) {
		p, err := e.sentry.init.Start(ctx, inside, streams)
		if err != nil && ctx.Err() == nil {
			err = e.execError(args, err)
		}
		return p, err
	})
}

// startChild adds a child of the first process to a table.
func (e *engine) startChild(ctx context.Context, table *process.Table, id string, cmd *atoll.Command, started time.Time, start func(pid1.Streams) (*pid1.Process, error)) (atoll.Process, error) {
	return table.StartRemote(ctx, id, cmd, e.outputHold(id), func(stdio process.Stdio) (process.Handle, error) {
		p, err := start(pid1.Streams(stdio))
		if err != nil {
			return nil, err
		}
		copied := *cmd
		c := &child{engine: e, id: id, cmd: &copied, process: p, started: started, began: time.Now()}
		e.children.Store(id, c)
		return c, nil
	})
}

// PID returns the process's PID inside.
func (c *child) PID() int { return c.process.PID() }

// Wait blocks until the process, or the sentry, has ended.
func (c *child) Wait() atoll.Exit {
	status, err := c.process.Wait()
	c.engine.children.Delete(c.id)
	return c.engine.explainExit(int32(c.PID()), c.started, syscall.WaitStatus(status), err, c.stopped.Load())
}

// Signal sends sig to the process alone, but SIGHUP to its whole session: unlike Linux, the sentry
// does not send that to the foreground when the process that owns a terminal ends.
func (c *child) Signal(sig atoll.Signal) error {
	send := c.engine.sentry.signalProcess
	if c.cmd.TTY != nil && sig == atoll.SIGHUP {
		send = c.engine.sentry.signalSession
	}
	return c.engine.signalProcess(c.id, int32(c.PID()), sig, send)
}

// Kill ends the process and all that it started.
func (c *child) Kill() error {
	c.stopped.Store(true)
	return c.engine.killProcess(c.id, int32(c.PID()))
}

// Resize implements process.Remote.
func (c *child) Resize(ctx context.Context, size atoll.Size) error {
	err := c.process.Resize(ctx, size.Rows, size.Cols)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, pid1.ErrLost) {
		return atoll.E("resize", c.id, atoll.ErrStopped, err)
	}
	return err
}

// processesName is the name of a file in a snapshot: the children of the first process in it.
const processesName = "processes.json"

// savedProcesses is the content of that file.
type savedProcesses struct {
	Program   string         `json:"program"` // SHA-256 of the first process, whose memory the snapshot has
	Init      int            `json:"init"`    // for pid1.Connect
	Processes []savedProcess `json:"processes"`
	Others    []pid1.Handle  `json:"others"` // the other children of the first process
}

// A savedProcess is a durable process in a snapshot. Its environment is not here: it can contain secrets.
type savedProcess struct {
	ID      string        `json:"id"`
	Command atoll.Command `json:"command"` // Timeout is the time that remains
	Started time.Time     `json:"started"`
	Handle  pid1.Handle   `json:"handle"`
}

// programSum returns the SHA-256 of the first process.
func programSum() (string, error) {
	program, err := pid1.Program(runtime.GOARCH)
	sum := sha256.Sum256(program)
	return hex.EncodeToString(sum[:]), err
}

// holdTimeout is the time that the first process has to finish what it does.
const holdTimeout = 20 * time.Second

// heldChildren are the children of a first process that does nothing until release is called.
type heldChildren struct {
	saved   savedProcesses // with which a copy of the sandbox continues
	release func()
}

// keepHeld remembers the held children of a paused sandbox, and releases those before.
func (e *engine) keepHeld(held *heldChildren) {
	e.heldMu.Lock()
	defer e.heldMu.Unlock()
	if e.held != nil {
		e.held.release()
	}
	e.held = held
}

// getHeld returns the held children of a paused sandbox; nil if it is not paused.
func (e *engine) getHeld() *heldChildren {
	e.heldMu.Lock()
	defer e.heldMu.Unlock()
	return e.held
}

// holdChildren keeps the first process from doing anything.
func (e *engine) holdChildren(ctx context.Context) (*heldChildren, error) {
	var saved savedProcesses
	var err error
	if saved.Program, err = programSum(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	state, release, err := e.sentry.init.Hold(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = atoll.Errorf("hold", e.sandbox.ID(), atoll.ErrTimeout, "the first process of the sandbox does not answer")
	}
	if err != nil {
		return nil, err
	}
	saved.Init, saved.Others = state.Saved, slices.Concat(state.Running, state.Ended)
	e.children.Range(func(_, value any) bool {
		c := value.(*child)
		handle := c.process.Handle()
		if !c.cmd.Durable || !slices.Contains(state.Running, handle) {
			return true
		}
		cmd := *c.cmd
		cmd.Env, cmd.OpenStdin, cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, true, nil, nil, nil
		if cmd.Timeout > 0 {
			cmd.Timeout = max(cmd.Timeout-atoll.Duration(time.Since(c.began)), 1)
		}
		saved.Processes = append(saved.Processes, savedProcess{c.id, cmd, c.started, handle})
		saved.Others = slices.DeleteFunc(saved.Others, func(h pid1.Handle) bool { return h == handle })
		return true
	})
	slices.SortFunc(saved.Processes, func(a, b savedProcess) int { return a.Started.Compare(b.Started) })
	return &heldChildren{saved, release}, nil
}

// writeProcesses writes the file processesName of a snapshot in dir.
func writeProcesses(dir string, saved savedProcesses) error {
	return fsutil.WriteJSON(filepath.Join(dir, processesName), saved)
}

// readProcesses reads what writeProcesses wrote. Without a snapshot there is nothing.
func readProcesses(snapshot string) (saved savedProcesses, err error) {
	if snapshot == "" {
		return saved, nil
	}
	sum, err := programSum()
	if err != nil {
		return saved, err
	}
	data, err := os.ReadFile(filepath.Join(snapshot, processesName))
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && saved.Program != sum {
		return saved, atoll.Errorf("create", "", atoll.ErrUnsupported, "another version of Atoll took the snapshot, and only that version can restore it")
	}
	return saved, err
}

// continueChildren connects the durable processes that were in the snapshot to the table, and ends all others.
func (e *engine) continueChildren(ctx context.Context) error {
	saved, err := readProcesses(e.job.Snapshot)
	if err != nil || saved.Init == 0 { // gVisor has ended all that did not come from the first process
		return err
	}
	if err := e.endOthers(saved.Processes); err != nil {
		return err
	}
	for _, p := range saved.Processes {
		_, err := e.startChild(ctx, e.table, p.ID, &p.Command, p.Started, func(streams pid1.Streams) (*pid1.Process, error) {
			return e.sentry.init.Adopt(ctx, p.Handle, streams)
		})
		if err != nil {
			return err
		}
	}
	return e.sentry.init.AdoptNoMore(ctx, saved.Others)
}

// endOthers kills all processes inside that belong to none of those that continue.
func (e *engine) endOthers(continuing []savedProcess) error {
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		procs, err := e.sentry.dumpProcesses()
		if err != nil {
			return err
		}
		ours := []int32{1}
		for _, p := range continuing {
			ours = append(ours, findDescendants(procs, int32(p.Handle.PID), p.ID)...)
		}
		others := slices.DeleteFunc(procs, func(p processInfo) bool { return slices.Contains(ours, p.pid) })
		if len(others) == 0 {
			return nil
		}
		for _, p := range others {
			_ = e.sentry.signalProcess(p.pid, atoll.SIGKILL) // it may have ended
		}
	}
	return errors.New("processes of the snapshot that are not durable do not end")
}

var _ process.Remote = (*child)(nil)
