//go:build linux

package keeper

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/guest"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/files"
)

// Dial connects to a TCP port inside, by way of the guest: gVisor's own port
// forwarding drops what is still on its way when one side closes for writing.
func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, atoll.Errorf("dial", b.ID(), atoll.ErrInvalid, "port %d: must be within 1..65535", port)
	}
	g, err := b.files.connect(ctx)
	if err != nil {
		return nil, err
	}
	return atoll.Dial(ctx, g, port)
}

// socketPair returns two ends of a stream: one for us, one to donate.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn, err := net.FileConn(ours) // duplicates
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// Usage measures what the sandbox uses.
func (b *box) Usage(context.Context) (atoll.Usage, error) {
	if b.ended() {
		return atoll.Usage{}, atoll.E("usage", b.ID(), atoll.ErrStopped, nil)
	}
	u, err := b.sentry.usage()
	if err != nil {
		return atoll.Usage{}, atoll.E("usage", b.ID(), atoll.ErrInternal, err)
	}
	if memory, cpu, ok := b.cgroup.Usage(); ok { // what it costs the host, sentry and keeper included
		u.Memory, u.CPU = atoll.Bytes(memory), atoll.Duration(cpu)
	}
	return u, nil
}

func (s *sentry) usage() (atoll.Usage, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	event, err := s.c.Event()
	if err != nil {
		return atoll.Usage{}, err
	}
	data := event.Event.Data
	return atoll.Usage{
		Memory:    atoll.Bytes(data.Memory.Usage.Usage),
		CPU:       atoll.Duration(data.CPU.Usage.Total),
		Processes: int(data.Pids.Current),
	}, nil
}

// Snapshot writes a checkpoint of the running sandbox, which runs on. The
// provider adds what makes it complete; if it does not wait for that, nothing is
// left of it.
func (b *box) Snapshot(ctx context.Context) (atoll.Snapshot, error) {
	if b.ended() {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), atoll.ErrStopped, nil)
	}
	snap := atoll.Snapshot{ID: atoll.NewID(), Sandbox: b.ID(), Created: time.Now()}
	b.files.dismiss() // its program is an open file of this process, which cannot be saved
	dir := b.dir.NewSnapshot(b.ID(), snap.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), bootKind(err), err)
	}
	err := b.sentry.checkpoint(dir)
	if err == nil && ctx.Err() == nil {
		return snap, nil
	}
	if dropErr := os.RemoveAll(dir); dropErr != nil { // a sweep tries again
		b.log.Error("snapshot: undo", "err", dropErr)
	}
	if err == nil {
		return atoll.Snapshot{}, ctx.Err()
	}
	return atoll.Snapshot{}, atoll.E("snapshot", b.ID(), bootKind(err), err)
}

func (s *sentry) checkpoint(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{Resume: true, ExcludeCommittedZeroPages: true})
}

// boxFiles is the box's file system as it is seen from inside, by a guest that
// is started when it is first needed. What lies on directories of the host the
// provider reads and writes itself.
type boxFiles struct {
	*files.FS
	box *box

	mu     sync.Mutex
	guest  *guest.Client
	exited <-chan struct{} // closed when the guest's process has ended
}

func newFiles(b *box) *boxFiles {
	f := &boxFiles{box: b}
	f.FS = files.New(files.Options{Workdir: b.job.Spec.Workdir, Inside: f.inside})
	return f
}

// inside returns the guest's file system.
func (f *boxFiles) inside(ctx context.Context) (atoll.FS, error) {
	g, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	return atoll.Files(g), nil
}

// connect returns the sandbox as the guest sees it, starting the guest if it is
// not there, or no longer: it is a process inside, which whoever is root there
// can kill.
func (f *boxFiles) connect(ctx context.Context) (atoll.Sandbox, error) {
	if err := f.box.mustRun("guest"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest == nil || f.guest.Closed() {
		g, exited, err := f.box.startGuest(ctx)
		if err != nil {
			return nil, atoll.E("guest", f.box.ID(), atoll.ErrUnavailable, err)
		}
		f.guest, f.exited = g, exited
	}
	return f.guest.Sandbox(), nil
}

// dismiss ends the guest and waits for its end; the next call that needs one
// starts another.
func (f *boxFiles) dismiss() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest != nil {
		_ = f.guest.Close()
		<-f.exited
		f.guest = nil
	}
}

func (f *boxFiles) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest != nil {
		_ = f.guest.Close()
		f.guest = nil
	}
	_ = f.FS.Close()
}

// GuestArgv0 is the argv[0] of this binary as a guest inside a sandbox.
const GuestArgv0 = "atoll-guest"

// startGuest executes this binary as the sandbox's default user's guest, with a
// socket as its stdin. The channel is closed when the guest has ended.
func (b *box) startGuest(ctx context.Context) (*guest.Client, <-chan struct{}, error) {
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	cred, err := b.resolveUser(b.defaultUser())
	var pid int32
	if err == nil {
		pid, err = b.execSelf(cred, theirs, nil, GuestArgv0, "serve", b.job.Spec.Workdir)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	exited := make(chan struct{})
	go func() {
		_, _ = b.sentry.wait(pid) // reaps it
		close(exited)
	}()
	g, err := guest.Connect(ctx, conn, b.ID())
	return g, exited, err
}

// execSelf executes this binary inside, given to the sentry as an open file.
// stdin and stderr may be nil.
func (b *box) execSelf(cred credentials, stdin, stderr *os.File, argv ...string) (int32, error) {
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
	return b.sentry.exec(args)
}

// errSelf is the error of a program of ours that did not do what it was to do.
var errSelf = errors.New("a helper in the sandbox failed")

// runSelf executes this binary inside as root and waits for its end. When it
// fails, the error is errSelf and holds what it said.
func (b *box) runSelf(stdin *os.File, argv ...string) error {
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	stderr := os.NewFile(uintptr(fd), "stderr")
	defer stderr.Close()
	pid, err := b.execSelf(credentials{}, stdin, stderr, argv...)
	if err != nil {
		return err
	}
	status, err := b.sentry.wait(pid)
	if err != nil {
		return err
	}
	if status.ExitStatus() == 0 {
		return nil
	}
	says, err := io.ReadAll(io.NewSectionReader(stderr, 0, 4<<10))
	return errors.Join(fmt.Errorf("%w: %s", errSelf, bytes.TrimSpace(says)), err)
}

// makeWorkdir makes the directory that processes start in, unless it is the
// data volume: inside and as root, because only there it is known what is a
// directory, a link or a mount.
func (b *box) makeWorkdir() error {
	dir := path.Clean(b.job.Spec.Workdir)
	if dir == atoll.DefaultWorkdir || b.job.Snapshot != "" {
		return nil
	}
	cred, err := b.resolveUser(b.defaultUser())
	if err != nil {
		return atoll.E("start", b.ID(), atoll.ErrInvalid, err)
	}
	err = b.runSelf(nil, GuestArgv0, "mkdir", dir, fmt.Sprint(cred.uid), fmt.Sprint(cred.gid))
	if errors.Is(err, errSelf) {
		return atoll.Errorf("start", b.ID(), atoll.ErrInvalid, "workdir %q cannot be made in the sandbox: %w", dir, err)
	}
	if err != nil {
		return atoll.E("start", b.ID(), atoll.ErrInternal, err)
	}
	return nil
}
