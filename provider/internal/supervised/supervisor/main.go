// Package supervisor is the process that owns one running sandbox, as a shim owns a
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
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/server/api"
)

// Spare is the second argument of a supervisor whose cgroup, the path of which is the
// first, is its own and not that of a sandbox.
const Spare = "spare"

// TakeOver is the whole life of this process if it was started as a supervisor of that
// kind, and does nothing if not. It is called in init, on the main thread, before
// anything is initialised that a supervisor does not need: each sandbox waits for that.
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
	conn, err := openJobConn()
	if err != nil {
		return 1
	}
	sv, err := startSupervisor(kind, conn)
	if err != nil {
		heard := sendReply(conn, failureReply(err)) == nil
		if !heard && sv != nil && sv.lock != nil { // who wanted it has died, and nobody else has it
			sv.sandbox.removeUnfinished()
		}
		runtime.KeepAlive(sv) // and its lock
		return 1
	}
	st, _ := sv.sandbox.Status(context.Background()) // never fails
	_ = sendReply(conn, Reply{Status: st})           // who does not hear it finds the record
	sv.serveUntilEnd()
	return 0
}

// removeUnfinished removes a sandbox that could not be made, for one who was killed
// meanwhile: all but a data volume that was there before. One that could not be
// started is as it was.
func (s *Sandbox) removeUnfinished() {
	if s.Job.Record.Status.State == atoll.StateCreating {
		s.removeSelf(s.Job.Record.Fresh, abandonTimeout)
	}
}

// abandonTimeout is how long a supervisor waits for the lock of one who was killed, who
// let go of it at the moment when he stopped to listen.
const abandonTimeout = 50 * time.Millisecond

func sendReply(w io.WriteCloser, r Reply) error {
	defer w.Close()
	return json.NewEncoder(w).Encode(r)
}

// A supervisor is a box and what serves it.
type supervisor struct {
	sandbox *Sandbox
	conn    Conn            // to the provider that wants the sandbox
	wanted  context.Context // ends when that has gone, or has its answer
	lock    *statedir.SupervisorLock
	handler *api.Handler
	server  *http.Server
	failed  chan error
}

// startSupervisor reads the job, boots the sandbox and begins to serve it.
func startSupervisor(kind Kind, conn Conn) (*supervisor, error) {
	if err := OwnMounts(); err != nil {
		return nil, err
	}
	var job Job
	dec := json.NewDecoder(conn)
	if err := dec.Decode(&job); err != nil {
		// The provider has ended. The cgroup of a sandbox is left for whoever
		// removes what else there is of it, or has done so and makes it again.
		err = fmt.Errorf("read job: %w", err)
		if argumentAt(2) == Spare {
			group := cgroup.Open(cgroup.Root).Group(argumentAt(1))
			err = errors.Join(err, group.Leave(), group.Remove())
		}
		return nil, err
	}
	booted := make(chan struct{})
	defer close(booted)
	wanted, unwanted := context.WithCancel(context.Background())
	go exitWithProvider(conn, booted, unwanted)
	log, err := os.OpenFile(filepath.Join(job.Dir, LogName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	sv := &supervisor{sandbox: newSandbox(&job, kind.Isolation, slog.New(slog.NewTextHandler(log, nil))), conn: conn, wanted: wanted, failed: make(chan error, 1)}
	if sv.sandbox.engine, err = kind.New(sv.sandbox, log); err != nil {
		return nil, err
	}
	return sv, sv.bootSandbox()
}

// bootGrace is how long the step of a start that a supervisor is at may still take when
// nobody wants the sandbox any more, of which that is told. Then it takes back what
// it did.
const bootGrace = 10 * time.Second

// exitWithProvider ends this process if the provider at the other end of conn dies and
// the sandbox is not booted in time: what is restored can make that hang, and
// nobody else would look after it.
func exitWithProvider(conn io.Reader, booted <-chan struct{}, unwanted func()) {
	_, _ = io.Copy(io.Discard, conn) // until it dies, or conn is closed
	unwanted()
	select {
	case <-booted:
	case <-time.After(bootGrace):
		os.Exit(1)
	}
}

// argumentAt is the i-th of the command line, "" if there are not so many.
func argumentAt(i int) string {
	if i < len(os.Args) {
		return os.Args[i]
	}
	return ""
}

// serveUntilEnd returns when the sandbox has come to its end and whoever ended it has
// his answer.
func (sv *supervisor) serveUntilEnd() {
	select {
	case <-sv.sandbox.done:
	case err := <-sv.failed:
		sv.sandbox.Log.Error("serve", "err", err)
		if won, _ := sv.sandbox.awaitBeginEnd(context.Background()); won {
			_ = sv.sandbox.recordEnd(atoll.StateFailed, "its supervisor could not serve: "+err.Error(), nil) // logged
		}
	}
	sv.closeServer()
	// The lock goes with the process, after all else that it holds: who waits
	// for it may take that all for free.
	runtime.KeepAlive(sv.lock)
}

// shutdownGrace is how long answers in progress may take at the end.
const shutdownGrace = 2 * time.Second

func (sv *supervisor) closeServer() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	_ = sv.server.Shutdown(ctx) // what is not answered by then is cut off
	_ = sv.server.Close()
	_ = sv.handler.Close()
}
