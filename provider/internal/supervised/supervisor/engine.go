package supervisor

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Kind is what the supervisors of one provider have of their own.
type Kind struct {
	// Argv0 is the argv[0] by which a process knows that it is one of them.
	Argv0 string
	// Isolation is what keeps their sandboxes apart.
	Isolation atoll.Isolation
	// New returns the engine of the sandbox, of which nothing runs yet. What it has
	// to say may be appended to log, and outlives it there.
	New func(s *Sandbox, log io.Writer) (Engine, error)
}

// An Engine is what one sandbox runs on in one supervisor: gVisor's sentry, say, or a
// virtual machine. It lives once, from its Steps to Destroy. All other methods may be
// called at once, and, but for its end, only when the steps have been taken; what they
// answer when it has ended is an error, but where they promise more.
type Engine interface {
	// Name is what messages call it.
	Name() string
	// Steps are what it takes to make it run, in their order. The one after which it
	// runs calls Box.Watch: from then on it may be asked for all that its end takes.
	Steps() []Step

	// Exited is closed when it has ended, whoever ended it; it may be nil before it
	// runs.
	Exited() <-chan struct{}
	// DeathReason says why it has ended by itself; "" if nothing is known but that.
	DeathReason() string
	// Lost reports whether err, which it returned, means that it has ended.
	Lost(err error) bool

	// Exec starts a command, which is valid, in a sandbox that runs: as the main process
	// if id is atoll.MainProcess, else, "", as any. With no Args it is a shell. A process
	// whose engine has ended is one that was killed, so that SIGKILL is no error, and
	// other signals are ErrStopped; what it printed is lost, but that of the main process.
	Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error)
	// Process and Processes know what Exec has started; the main process also when all
	// was destroyed, and whoever reads what it printed reads on.
	Process(ctx context.Context, id string) (atoll.Process, error)
	Processes(ctx context.Context) ([]atoll.ProcessStatus, error)
	// Running is how many processes there are inside, but those that are always there:
	// what Exec has started, and what that has left behind.
	Running(ctx context.Context) (int, error)

	// Files is the file system as it is seen from inside.
	Files() atoll.FS
	// Dial connects to a TCP port inside.
	Dial(ctx context.Context, port int) (net.Conn, error)
	// Usage is what it knows of what is used; the sandbox's cgroup knows better.
	Usage(ctx context.Context) (atoll.Usage, error)

	// Pause freezes all that is inside, and Resume lets it go on. A second one does
	// nothing.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Frozen reports whether it is paused.
	Frozen() bool
	// Snapshot writes to a directory, which is empty, what a sandbox can be made from
	// that goes on where this one is, and goes on itself.
	Snapshot(ctx context.Context, dir string) error

	// Terminate asks every process to end and waits for it, grace at most. Its error
	// says that it is not certain that any has heard: then none is asked to later.
	Terminate(grace time.Duration) error
	// Keep saves, complete or not at all, what is not on volumes and is to be there at
	// the next start. It comes after Terminate, and before Destroy; what fails is tried
	// again, and meanwhile the sandbox goes on.
	Keep() error
	// Kill ends it, however it is doing, and with it every call to it that is in
	// progress. It frees nothing.
	Kill()
	// Destroy ends it and frees what it holds. Whoever waits for a process has his
	// answer before it returns.
	Destroy() error
	// SaveMain writes to a file what is known of the main process when all has been
	// destroyed, as process.Table.Save does; ErrNotExist if there was none.
	SaveMain(path string) error
	// Unmount takes away what it has mounted, in this process's mount namespace, on the
	// sandbox's directories, which are about to be removed.
	Unmount() error
}

// A Staller is an Engine that may stand still by itself, and go on: who asks what is inside
// meanwhile is told, and does not wait.
type Staller interface {
	// Stalled says why it stands still, and what to do; "" if it does not.
	Stalled() string
}

// A Step is one of a start. It can fail, and then what those before it have made is
// undone. One that waits gives up when ctx ends: nobody wants the sandbox any more.
type Step struct {
	Name string
	Do   func(ctx context.Context, undo *Undo) error
}

// An Undo holds what takes back the steps made so far.
type Undo []func()

// Add adds what takes back the step that is being made.
func (u *Undo) Add(f func()) { *u = append(*u, f) }

func (u *Undo) runAll() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}
