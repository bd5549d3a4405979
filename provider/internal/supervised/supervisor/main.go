// Package supervisor implements the process that owns one running sandbox, as a shim owns a
// container.
//
// A provider (see package supervised) starts it by executing its own binary again with
// the argv[0] of its Kind, in a session and, on Linux, a mount namespace of its own,
// without standard streams, and sends it a Job over a socket. Only the supervisor touches
// the sandbox's Engine. It updates the sandbox's record, enforces its time limits, cleans
// up at its end, and serves the API of this one sandbox on a socket in the sandbox's
// directory. The provider and its clients may die, be upgraded and come back; when the
// supervisor dies, everything that its engine started must die with it.
//
// A binary can serve as supervisor if the init function of one of its packages calls
// TakeOver:
//
//	func init() {
//		supervisor.TakeOver(supervisor.Kind{Argv0: Argv0, Isolation: atoll.IsolationVM, New: newEngine})
//	}
package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gcdelay"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/server/api"
)

// Spare is the second argument of a supervisor that has a cgroup of its own, not yet that
// of a sandbox. The first argument is the cgroup's path.
const Spare = "spare"

// EmptyTrash is the first argument of a process that is started like a supervisor, and has its rights, to empty the trash of the state
// directory that the second argument names.
const EmptyTrash = "empty-trash"

func emptyTrash(dir string) int {
	err := AwaitIDs(func() bool { return false })
	if err == nil {
		err = statedir.Dir(dir).EmptyTrash()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TakeOver runs this process as a supervisor and never returns, if it was started as one of
// that kind; else it does nothing. Call it in init, on the main thread, before anything is
// initialised that a supervisor does not need: each sandbox waits for that.
func TakeOver(kind Kind) {
	if argumentAt(0) != kind.Argv0 {
		return
	}
	// The main thread must outlive the engine, which may be killed with the thread
	// that started it.
	runtime.LockOSThread()
	os.Exit(runSupervisor(kind))
}

func runSupervisor(kind Kind) int {
	if argumentAt(1) == EmptyTrash {
		return emptyTrash(argumentAt(2))
	}
	conn, err := openJobConn()
	if err != nil {
		return 1
	}
	sv, err := startSupervisor(kind, conn)
	if err != nil {
		delivered := sendReply(conn, failureReply(err)) == nil
		if !delivered && sv != nil && sv.lock != nil { // the provider has died, and no other supervisor has the sandbox
			sv.sandbox.removeUnfinished()
		}
		runtime.KeepAlive(sv) // and its lock
		return 1
	}
	gcdelay.Shrink()
	st, _ := sv.sandbox.Status(context.Background()) // never fails
	_ = sendReply(conn, Reply{Status: st})           // if the provider has died, the record says the same
	sv.serveUntilEnd()
	return 0
}

// removeUnfinished removes a sandbox that could not be made, for a provider that was killed
// meanwhile. A data volume that existed before stays. A sandbox that could not be started
// is left as it was.
func (s *Sandbox) removeUnfinished() {
	if s.Job.Record.Status.State == atoll.StateCreating {
		s.removeSelf(s.Job.Record.Fresh, abandonTimeout)
	}
}

// abandonTimeout is the time that a supervisor waits for the lock of a killed provider,
// which the system released at the moment when the connection to the provider broke.
const abandonTimeout = 50 * time.Millisecond

func sendReply(w io.WriteCloser, r Reply) error {
	defer w.Close()
	return json.NewEncoder(w).Encode(r)
}

// A supervisor is a Sandbox and the server of its API.
type supervisor struct {
	sandbox *Sandbox
	conn    Conn            // to the provider that wants the sandbox
	wanted  context.Context // ends when the provider has gone, or has its answer
	lock    *statedir.SupervisorLock
	built   chan error // receives when handler is set
	handler *api.Handler
	server  *http.Server
	failed  chan error
}

// startSupervisor reads the job, boots the sandbox and begins to serve it.
func startSupervisor(kind Kind, conn Conn) (*supervisor, error) {
	if err := OwnMounts(); err != nil {
		return nil, err
	}
	if err := AwaitIDs(conn.HungUp); err != nil {
		return nil, err
	}
	if kind.Prepare != nil && argumentAt(2) == Spare {
		kind.Prepare()
	}
	var job Job
	dec := json.NewDecoder(conn)
	if err := dec.Decode(&job); err != nil {
		// The provider has ended. A sandbox's cgroup is left for the process that
		// removes the rest of the sandbox, or has removed it and makes it again.
		err = fmt.Errorf("read job: %w", err)
		if argumentAt(2) == Spare {
			group := cgroup.Open(cgroup.Root).Group(argumentAt(1))
			err = errors.Join(err, group.Leave(), group.Remove())
		}
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(job.Dir, LogName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	sv := &supervisor{sandbox: newSandbox(&job, kind.Isolation, slog.New(slog.NewTextHandler(log, nil))), conn: conn, built: make(chan error, 1), failed: make(chan error, 1)}
	if sv.sandbox.engine, err = kind.New(sv.sandbox, log); err != nil {
		return nil, err
	}
	go sv.buildHandler() // while the engine starts, this process mostly waits
	var unwanted func()
	sv.wanted, unwanted = context.WithCancel(context.Background())
	defer unwanted() // the provider has its answer
	if job.Ahead {
		return sv, sv.bootAhead(dec, unwanted)
	}
	booted := make(chan struct{})
	defer close(booted)
	go exitWithProvider(conn, booted, unwanted)
	return sv, sv.bootSandbox()
}

// bootGrace is the time that the current step of a start may still take when nobody wants
// the sandbox any more; the step's ctx has ended then. After the step, the supervisor
// undoes what it did.
const bootGrace = 10 * time.Second

// exitWithProvider ends this process if the provider at the other end of conn dies and the
// sandbox does not boot in time: a restored sandbox can make the engine hang, and nobody
// else would look after it.
func exitWithProvider(conn io.Reader, booted <-chan struct{}, unwanted func()) {
	_, _ = io.Copy(io.Discard, conn) // until it dies, or conn is closed
	unwanted()
	select {
	case <-booted:
	case <-time.After(bootGrace):
		os.Exit(1)
	}
}

// argumentAt returns the i-th argument of the command line, "" if there is none.
func argumentAt(i int) string {
	if i < len(os.Args) {
		return os.Args[i]
	}
	return ""
}

// serveUntilEnd returns when the sandbox has ended and the client that ended it has its
// answer.
func (sv *supervisor) serveUntilEnd() {
	select {
	case <-sv.sandbox.done:
	case err := <-sv.failed:
		sv.sandbox.Log.Error("serve", "err", err)
		if won, _ := sv.sandbox.awaitBeginEnd(context.Background()); won {
			_ = sv.sandbox.recordEnd(atoll.StateFailed, "its supervisor could not serve the API: "+err.Error(), nil) // logged
		}
	}
	sv.closeServer()
	// The lock is released with the process, after all else that it holds: a process that waits
	// for the lock may rely on that.
	runtime.KeepAlive(sv.lock)
}

// shutdownGrace is the time that answers in progress get at the end.
const shutdownGrace = 2 * time.Second

func (sv *supervisor) closeServer() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	_ = sv.server.Shutdown(ctx) // what is not answered by then is cut off
	_ = sv.server.Close()
	_ = sv.handler.Close()
}
