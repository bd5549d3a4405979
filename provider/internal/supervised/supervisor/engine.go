package supervisor

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Kind describes the supervisors of one provider.
type Kind struct {
	// Argv0 is the argv[0] by which a process recognises that it is such a supervisor.
	Argv0 string
	// Isolation is the isolation of their sandboxes.
	Isolation atoll.Isolation
	// Prepare, if it is not nil, does ahead what needs no job. A supervisor that was started before there is a sandbox for it calls it on
	// the main thread, while it waits for its job.
	Prepare func()
	// New returns the engine of the sandbox, of which nothing runs yet. The engine may
	// append messages to log, which outlives it.
	New func(s *Sandbox, log io.Writer) (Engine, error)
}

// An Engine runs one sandbox in one supervisor: gVisor's sentry, say, or a virtual machine.
// It lives once, from its Steps to Destroy. All other methods may be called concurrently,
// and, except for those that end it, only after the steps have been taken; after its end
// they return errors, except where they promise more.
type Engine interface {
	// Name returns the engine's name in messages.
	Name() string
	// Steps returns the steps that start the engine, in their order. The step after which
	// it runs calls Sandbox.Watch: from then on all calls that end it may be made.
	Steps() []Step

	// Exited returns a channel that is closed when the engine has ended, whatever ended it;
	// it may be nil before the engine runs.
	Exited() <-chan struct{}
	// DeathReason says why the engine has ended by itself; "" if the reason is not known.
	DeathReason() string
	// Lost reports whether err, which the engine returned, means that the engine has ended.
	Lost(err error) bool

	// Exec starts a valid command in a running sandbox: as the main process if id is
	// atoll.MainProcess, else, with id "", as any other. With no Args it is a shell. A
	// process whose engine has ended counts as killed, so that SIGKILL is no error, and
	// other signals return ErrStopped; its output is lost, except that of the main process.
	Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error)
	// Process and Processes return what Exec has started; the main process also after
	// Destroy, when readers of its output can still continue.
	Process(ctx context.Context, id string) (atoll.Process, error)
	Processes(ctx context.Context) ([]atoll.ProcessStatus, error)
	// Running returns the number of processes inside, without those that always run:
	// processes that Exec has started, and those that they have left behind.
	Running(ctx context.Context) (int, error)

	// Files returns the file system as the inside sees it.
	Files() atoll.FS
	// Dial connects to a TCP port inside.
	Dial(ctx context.Context, port int) (net.Conn, error)
	// Usage returns the usage that the engine knows; the values of the sandbox's cgroup
	// take precedence.
	Usage(ctx context.Context) (atoll.Usage, error)

	// Pause freezes everything inside, and Resume lets it continue. A second call does
	// nothing.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Frozen reports whether the sandbox is paused.
	Frozen() bool
	// Snapshot writes to an empty directory a state from which a sandbox can be made that
	// continues where this one is. This one continues, too. Unless opts say otherwise, it copies
	// the data volume of the same moment to the directory statedir.SnapshotWork in dir.
	Snapshot(ctx context.Context, dir string, opts atoll.SnapshotOptions) error

	// Terminate asks every process to end and waits for that, for at most grace. An error
	// says that it is not certain that any process got the signal; then the supervisor does
	// not ask again later.
	Terminate(grace time.Duration) error
	// Keep saves, completely or not at all, the files that are not on volumes and that the
	// next start must find. It comes after Terminate, and before Destroy. If it fails, it
	// is called again later, and meanwhile the sandbox keeps running.
	Keep() error
	// Kill ends the engine, even if it hangs, and with it every call to it that is in
	// progress. It frees nothing.
	Kill()
	// Destroy ends the engine and frees what it holds. All callers that wait for a process
	// have their answer before it returns.
	Destroy() error
	// SaveMain writes the main process, with its output and exit, to a file after Destroy,
	// as process.Table.Save does; ErrNotExist if there was none.
	SaveMain(path string) error
	// Unmount removes the mounts that the engine made in this process's mount namespace on
	// the sandbox's directories, which are about to be removed.
	Unmount() error
}

// A Staller is an Engine that may stall by itself, and continue later. Meanwhile, calls to
// the inside return the reason at once instead of waiting.
type Staller interface {
	// Stalled says why the engine stalls, and what to do; "" if it does not.
	Stalled() string
}

// An Adopter is an Engine that can boot before there is a sandbox for it: see Job.Ahead.
type Adopter interface {
	// Adopt makes the engine, which has booted for the job before, that of Sandbox.Job. They differ only in what a
	// sandbox can get after its boot. Then Adopt calls Sandbox.Watch, which the engine did not call in its Steps.
	Adopt(ctx context.Context, before *Job) error
}

// A Step is one step of a start. If it fails, the steps before it are undone. A step that
// waits gives up when ctx ends: nobody wants the sandbox any more.
type Step struct {
	Name string
	Do   func(ctx context.Context, undo *Undo) error
}

// An Undo holds functions that undo the steps done so far.
type Undo []func()

// Add adds a function that undoes the current step.
func (u *Undo) Add(f func()) { *u = append(*u, f) }

func (u *Undo) runAll() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}
