//go:build linux

package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/inroot"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/files"
	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
)

// guestArgv0 is the argv[0] of this binary as a guest inside a sandbox.
const guestArgv0 = "atoll-native-guest"

// runGuest serves the file system of the sandbox on the socket that is its stdin.
func runGuest(args []string) int {
	err := errors.New("this is a helper process of Atoll: only Atoll may start it, in a sandbox")
	if len(args) == 1 {
		err = serveFiles(args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveFiles(workdir string) error {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return err
	}
	return guest.Serve(conn, dirfs.Options{Workdir: workdir, UID: -1, GID: -1})
}

// sandboxFiles is the sandbox's file system as the inside sees it, through a guest that starts when it is first needed. The provider
// itself reads and writes files in directories of the host.
type sandboxFiles struct {
	*files.FS
	engine *engine

	mu    sync.Mutex
	guest *runningGuest // nil when there is none
}

// A runningGuest is a guest that runs.
type runningGuest struct {
	client  *guest.Client
	process *pid1.Process
}

func newFiles(e *engine) *sandboxFiles {
	f := &sandboxFiles{engine: e}
	f.FS = files.New(func() (files.View, error) {
		begun := time.Now()
		return files.View{Workdir: e.job.Spec.Workdir, Inside: f.guestFS, Explain: func(err error) error {
			if e.disk.endedDuring(begun) { // the guest was, too
				return atoll.Errorf("write", e.sandbox.ID(), atoll.ErrExhausted, "%s", e.disk.explainEnd())
			}
			return err
		}}, nil
	})
	return f
}

// guestFS returns the guest's file system. It starts the guest if it does not run, or no longer: it is a process inside, which root
// there can kill.
func (f *sandboxFiles) guestFS(ctx context.Context) (atoll.FS, error) {
	if err := f.engine.sandbox.MustRun("files"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest == nil || f.guest.client.Closed() {
		g, err := f.engine.startGuest(ctx)
		if err != nil {
			return nil, atoll.E("files", f.engine.sandbox.ID(), atoll.ErrUnavailable, err)
		}
		f.guest = g
	}
	return atoll.Files(f.guest.client.Sandbox()), nil
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

// closeGuest closes the connection to a guest that has ended.
func (f *sandboxFiles) closeGuest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.guest != nil {
		_ = f.guest.client.Close()
		f.guest = nil
	}
}

// startGuest executes this binary as a guest of the sandbox's default user, with a socket as its stdin.
func (e *engine) startGuest(ctx context.Context) (*runningGuest, error) {
	cred, err := e.resolveUser(e.defaultUser())
	if err != nil {
		return nil, err
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	conn, theirs, err := socket.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := &pid1.Command{Args: []string{guestArgv0, e.job.Spec.Workdir}, Dir: "/", UID: uint32(cred.UID), GID: uint32(cred.GID)}
	for _, g := range cred.Groups {
		cmd.Groups = append(cmd.Groups, uint32(g))
	}
	p, err := e.init.Start(ctx, cmd, [3]*os.File{theirs, null, null}, self)
	if err != nil {
		conn.Close()
		return nil, err
	}
	client, err := guest.Connect(ctx, conn, e.sandbox.ID()) // on failure it closes conn, so that the guest ends
	if err != nil {
		return nil, err
	}
	e.watchDisk()
	return &runningGuest{client, p}, nil
}

// makeWorkdir makes the directory in which processes start, unless it is the data volume.
func (e *engine) makeWorkdir() error {
	dir := path.Clean(e.job.Spec.Workdir)
	if dir == "/" || dir == atoll.DefaultWorkdir && e.job.Caps.Volumes {
		return nil
	}
	cred, err := e.resolveUser(e.defaultUser())
	if err != nil {
		return atoll.E("start", e.sandbox.ID(), atoll.ErrInvalid, err)
	}
	top := fmt.Sprintf("/proc/self/fd/%d", e.top.Fd())
	var st unix.Stat_t
	probe, err := unix.Openat2(int(e.top.Fd()), dir[1:], &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	existed := err == nil
	if existed {
		unix.Close(probe)
	}
	var fd int
	err = e.ids.actInside(func() (err error) { fd, err = inroot.Open(top, dir, false); return err })
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return atoll.Errorf("start", e.sandbox.ID(), atoll.ErrInvalid, "workdir %q cannot be made in the sandbox: %w", dir, err)
	}
	if existed || userdb.IsRoot(e.defaultUser()) {
		return nil
	}
	return os.NewSyscallError("chown", unix.Fchownat(fd, "", e.ids.root+int(cred.UID), e.ids.root+int(cred.GID), unix.AT_EMPTY_PATH))
}
