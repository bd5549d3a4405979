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

// Spare is the second argument of a keeper whose cgroup, the path of which is the
// first, is its own and not that of a sandbox.
const Spare = "spare"

// TakeOver is the whole life of this process if it was started as a keeper of that
// kind, and does nothing if not. It is called in init, on the main thread, before
// anything is initialised that a keeper does not need: each sandbox waits for that.
func TakeOver(kind Kind) {
	if argument(0) != kind.Argv0 {
		return
	}
	// The main thread must outlive the engine, which may be killed with the thread
	// that started it.
	runtime.LockOSThread()
	os.Exit(run(kind))
}

func run(kind Kind) int {
	conn, err := adopt()
	if err != nil {
		return 1
	}
	k, err := start(kind, conn)
	if err != nil {
		heard := reply(conn, failure(err)) == nil
		if !heard && k != nil && k.lock != nil { // who wanted it has died, and nobody else has it
			k.box.abandon()
		}
		runtime.KeepAlive(k) // and its lock
		return 1
	}
	st, _ := k.box.Status(context.Background()) // never fails
	_ = reply(conn, Reply{Status: st})          // who does not hear it finds the record
	k.serve()
	return 0
}

// abandon removes a sandbox that could not be made, for one who was killed
// meanwhile: all but a data volume that was there before. One that could not be
// started is as it was.
func (b *Box) abandon() {
	if b.Job.Record.Status.State == atoll.StateCreating {
		b.removeSelf(b.Job.Record.Fresh, abandonWait)
	}
}

// abandonWait is how long a keeper waits for the lock of one who was killed, who
// let go of it at the moment when he stopped to listen.
const abandonWait = 50 * time.Millisecond

func reply(w io.WriteCloser, r Reply) error {
	defer w.Close()
	return json.NewEncoder(w).Encode(r)
}

// A keeper is a box and what serves it.
type keeper struct {
	box     *Box
	conn    Line            // to the provider that wants the sandbox
	wanted  context.Context // ends when that has gone, or has its answer
	lock    *statedir.KeeperLock
	handler *api.Handler
	server  *http.Server
	failed  chan error
}

// start reads the job, boots the sandbox and begins to serve it.
func start(kind Kind, conn Line) (*keeper, error) {
	if err := OwnMounts(); err != nil {
		return nil, err
	}
	var job Job
	dec := json.NewDecoder(conn)
	if err := dec.Decode(&job); err != nil {
		// The provider has ended. The cgroup of a sandbox is left for whoever
		// removes what else there is of it, or has done so and makes it again.
		err = fmt.Errorf("read job: %w", err)
		if argument(2) == Spare {
			group := cgroup.Open(cgroup.Root).Group(argument(1))
			err = errors.Join(err, group.Leave(), group.Remove())
		}
		return nil, err
	}
	booted := make(chan struct{})
	defer close(booted)
	wanted, unwanted := context.WithCancel(context.Background())
	go dieWith(conn, booted, unwanted)
	log, err := os.OpenFile(filepath.Join(job.Dir, LogName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	k := &keeper{box: newBox(&job, kind.Isolation, slog.New(slog.NewTextHandler(log, nil))), conn: conn, wanted: wanted, failed: make(chan error, 1)}
	if k.box.engine, err = kind.New(k.box, log); err != nil {
		return nil, err
	}
	return k, k.boot()
}

// bootGrace is how long the step of a start that a keeper is at may still take when
// nobody wants the sandbox any more, of which that is told. Then it takes back what
// it did.
const bootGrace = 10 * time.Second

// dieWith ends this process if the provider at the other end of conn dies and
// the sandbox is not booted in time: what is restored can make that hang, and
// nobody else would look after it.
func dieWith(conn io.Reader, booted <-chan struct{}, unwanted func()) {
	_, _ = io.Copy(io.Discard, conn) // until it dies, or conn is closed
	unwanted()
	select {
	case <-booted:
	case <-time.After(bootGrace):
		os.Exit(1)
	}
}

// argument is the i-th of the command line, "" if there are not so many.
func argument(i int) string {
	if i < len(os.Args) {
		return os.Args[i]
	}
	return ""
}

// serve returns when the sandbox has come to its end and whoever ended it has
// his answer.
func (k *keeper) serve() {
	select {
	case <-k.box.done:
	case err := <-k.failed:
		k.box.Log.Error("serve", "err", err)
		if won, _ := k.box.waitToEnd(context.Background()); won {
			_ = k.box.finish(atoll.StateFailed, "its keeper could not serve: "+err.Error(), nil) // logged
		}
	}
	k.close()
	// The lock goes with the process, after all else that it holds: who waits
	// for it may take that all for free.
	runtime.KeepAlive(k.lock)
}

// shutdownGrace is how long answers in progress may take at the end.
const shutdownGrace = 2 * time.Second

func (k *keeper) close() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	_ = k.server.Shutdown(ctx) // what is not answered by then is cut off
	_ = k.server.Close()
	_ = k.handler.Close()
}
