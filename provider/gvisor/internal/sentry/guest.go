//go:build linux

package sentry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/control"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/files"
)

// sandboxFiles is the sandbox's file system as the inside sees it, through a guest that
// starts when it is first needed. The provider itself reads and writes files in directories
// of the host.
type sandboxFiles struct {
	*files.FS
	engine *engine

	mu    sync.Mutex
	guest *runningGuest // nil when there is none
}

// A runningGuest is a guest that runs.
type runningGuest struct {
	client *guest.Client
	pid    int32
	exited chan struct{} // closed when its process has ended
}

func newFiles(e *engine) *sandboxFiles {
	f := &sandboxFiles{engine: e}
	f.FS = files.New(func() (files.View, error) {
		return files.View{Workdir: e.job.Spec.Workdir, Inside: f.guestFS}, nil
	})
	return f
}

// guestFS returns the guest's file system.
func (f *sandboxFiles) guestFS(ctx context.Context) (atoll.FS, error) {
	g, err := f.connectGuest(ctx, "files")
	if err != nil {
		return nil, err
	}
	return atoll.Files(g), nil
}

// connectGuest returns, for op, the sandbox as the guest sees it, and starts the guest if
// it does not run, or no longer: it is a process inside, which root there can kill.
func (f *sandboxFiles) connectGuest(ctx context.Context, op string) (atoll.Sandbox, error) {
	if err := f.engine.sandbox.MustRun(op); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest == nil || f.guest.client.Closed() {
		g, err := f.engine.startGuest(ctx)
		if err != nil {
			return nil, atoll.E(op, f.engine.sandbox.ID(), atoll.ErrUnavailable, err)
		}
		f.guest = g
	}
	return f.guest.client.Sandbox(), nil
}

// takeGuest returns the running guest, if any, and forgets it: the next call that needs one
// starts another.
func (f *sandboxFiles) takeGuest() *runningGuest {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.guest
	f.guest = nil
	return g
}

// guestCount returns the number of guests that run: one or none.
func (f *sandboxFiles) guestCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest == nil || f.guest.client.Closed() {
		return 0
	}
	return 1
}

// guestEndTimeout is the time that a guest gets to die.
const guestEndTimeout = 5 * time.Second

// endGuest kills the guest, if there is one, and waits for its end.
func (f *sandboxFiles) endGuest(ctx context.Context) error {
	g := f.takeGuest()
	if g == nil {
		return nil
	}
	_ = g.client.Close()
	// Root inside may have suspended it, so closing the connection is not enough.
	if err := f.engine.sentry.signalProcess(g.pid, atoll.SIGKILL); err != nil {
		f.engine.sandbox.Log.Debug("guest", "err", err) // it has ended by itself
	}
	select {
	case <-g.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(guestEndTimeout):
		return atoll.Errorf("guest", f.engine.sandbox.ID(), atoll.ErrTimeout, "the guest does not end")
	}
}

// closeGuest closes the connection to the guest of a sandbox that has ended.
func (f *sandboxFiles) closeGuest() {
	if g := f.takeGuest(); g != nil {
		_ = g.client.Close()
	}
}

// GuestArgv0 is the argv[0] of this binary as a guest inside a sandbox.
const GuestArgv0 = "atoll-guest"

// startGuest executes this binary as a guest of the sandbox's default user, with a socket
// as its stdin.
func (e *engine) startGuest(ctx context.Context) (*runningGuest, error) {
	conn, theirs, err := socket.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cred, err := e.resolveUser(ctx, e.defaultUser())
	var pid int32
	if err == nil {
		pid, err = e.execSelf(ctx, cred, theirs, nil, GuestArgv0, "serve", e.job.Spec.Workdir)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_, _ = e.sentry.waitProgram(pid) // reaps it
	}()
	client, err := guest.Connect(ctx, conn, e.sandbox.ID()) // on failure it closes conn, so that the guest ends
	if err != nil {
		return nil, err
	}
	return &runningGuest{client, pid, exited}, nil
}

// execSelf executes this binary inside, which the sentry gets as an open file. stdin and
// stderr may be nil.
func (e *engine) execSelf(ctx context.Context, cred userdb.User, stdin, stderr *os.File, argv ...string) (int32, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	defer self.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	args, err := credArgs(cred)
	if err != nil {
		return 0, err
	}
	args.Argv, args.WorkingDirectory = argv, "/"
	args.FilePayload = control.NewFilePayload(map[int]*os.File{0: cmp.Or(stdin, null), 1: null, 2: cmp.Or(stderr, null)}, self)
	return e.sentry.execProgram(ctx, args)
}

// errSelf says that this binary, executed inside, failed.
var errSelf = errors.New("a helper in the sandbox failed")

// runSelf executes this binary inside as root and waits for its end. If it fails, the error
// is errSelf and contains its stderr.
func (e *engine) runSelf(stdin *os.File, argv ...string) error {
	stderr, err := createMemoryFile("stderr")
	if err != nil {
		return err
	}
	defer stderr.Close()
	pid, err := e.execSelf(context.Background(), userdb.User{}, stdin, stderr, argv...)
	if err != nil {
		return err
	}
	status, err := e.sentry.waitProgram(pid)
	if err != nil {
		return err
	}
	if status.ExitStatus() == 0 {
		return nil
	}
	output, err := io.ReadAll(io.NewSectionReader(stderr, 0, 4<<10))
	return errors.Join(fmt.Errorf("%w: %s", errSelf, bytes.TrimSpace(output)), err)
}

// makeWorkdir makes the directory in which processes start, unless it is the data volume.
// It works inside and as root, because only the inside knows what is a directory, a link or
// a mount.
func (e *engine) makeWorkdir() error {
	dir := path.Clean(e.job.Spec.Workdir)
	if dir == atoll.DefaultWorkdir || e.job.Snapshot != "" {
		return nil
	}
	cred, err := e.resolveUser(context.Background(), e.defaultUser())
	if err != nil {
		return atoll.E("start", e.sandbox.ID(), atoll.ErrInvalid, err)
	}
	err = e.runSelf(nil, GuestArgv0, "mkdir", dir, fmt.Sprint(cred.UID), fmt.Sprint(cred.GID))
	if errors.Is(err, errSelf) {
		return atoll.Errorf("start", e.sandbox.ID(), atoll.ErrInvalid, "workdir %q cannot be made in the sandbox: %w", dir, err)
	}
	if err != nil {
		return atoll.E("start", e.sandbox.ID(), atoll.ErrInternal, err)
	}
	return nil
}
