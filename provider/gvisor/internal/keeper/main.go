//go:build linux

// Package keeper is the process that owns one running gVisor sandbox, as a
// shim owns a container.
//
// A provider starts it by executing its own binary again with argv[0] Argv0,
// in a session of its own with nothing on its standard streams, and sends it a
// Job over descriptor 3. It is the only caller of gVisor's packages: it holds
// the sandbox's output, terminals, network, time limits and exit, and serves
// the API of this one sandbox on a socket in the sandbox's directory. The
// provider and its clients may die, be upgraded and come back; when the keeper
// dies, the kernel kills the sentry and the gofer with it.
//
// Any binary that imports this package can serve as keeper: it takes over in
// init, like package runsc.
package keeper

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	gvisorlog "gvisor.dev/gvisor/pkg/log"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/statedir"
)

// Argv0 is the argv[0] of a keeper.
const Argv0 = "atoll-keeper"

// jobFD is the descriptor of the socket on which the job comes and the reply
// goes.
const jobFD = 3

// HighFD is a descriptor of nothing, whose number matters: Linux gives a new
// process a table of descriptors for the highest that is open, and lets a
// process with threads wait, for 12 ms as measured, when it has to make the
// table larger. The sentry would have to, with its 64th descriptor.
const HighFD = 255

// heldFD is what keeps the image from being removed as long as it is open, if
// there is one: it stays so until this process ends.
const heldFD = 4

func init() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case Argv0:
		// The main thread must outlive the sentry, which is killed with the
		// thread that started it.
		runtime.LockOSThread()
		os.Exit(Main())
	case ProbeArgv0:
		os.Exit(probe())
	case GuestArgv0:
		os.Exit(runGuest(os.Args[1:]))
	}
}

// Main is the whole life of a keeper.
func Main() int {
	if err := closeInherited(); err != nil {
		return 1
	}
	unix.CloseOnExec(jobFD)
	unix.CloseOnExec(heldFD)
	unix.CloseOnExec(HighFD)
	conn := os.NewFile(jobFD, "job")
	k, err := start(conn)
	if err != nil {
		_ = reply(conn, failure(err)) // who does not hear it has died
		return 1
	}
	if err := reply(conn, Reply{Status: k.box.record.Status}); err != nil {
		// Whoever wanted the sandbox died while it was being made, and nobody
		// else knows of it.
		k.box.abandon()
		return 1
	}
	conn.Close()
	k.serve()
	return 0
}

// closeInherited closes what this process was given by accident: descriptors
// that whoever started Atoll had left open, locks and secrets among them, and
// that would otherwise stay so as long as the sandbox lives. Those of the Go
// runtime are closed on exec, so they are not inherited ones.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= heldFD || fd == HighFD {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// abandon ends a sandbox of which nobody knows that it runs. One that was being
// made was never handed out and goes, but for a data volume that was there
// before; one that was being started is stopped, as it was.
func (b *box) abandon() {
	if b.begin() {
		_ = b.finish(atoll.StateStopped, "", nil) // logged
	}
	if b.job.Record.Status.State == atoll.StateCreating {
		// Who made it and has given up does the same, and waits for our end; one
		// who was killed has let go of the lock at the same moment.
		b.removeSelf(b.job.Record.Fresh, 50*time.Millisecond)
	}
}

func reply(w io.WriteCloser, r Reply) error {
	defer w.Close()
	return json.NewEncoder(w).Encode(r)
}

// A keeper is a box and what serves it.
type keeper struct {
	box     *box
	lock    *statedir.KeeperLock
	handler *api.Handler
	server  *http.Server
	failed  chan error
}

// start reads the job, boots the sandbox and begins to serve it.
func start(conn *os.File) (_ *keeper, err error) {
	if err := ownMounts(); err != nil {
		return nil, err
	}
	var job Job
	dec := json.NewDecoder(conn)
	if err := dec.Decode(&job); err != nil {
		// A spare one, of a provider that has ended.
		group := cgroup.Open(cgroup.Root).Group(argument(1))
		return nil, errors.Join(fmt.Errorf("read job: %w", err), group.Leave(), group.Remove())
	}
	// gVisor runs parts of itself from files beside the executable, if they are
	// there, unseen whose they are and of what version. They must not be.
	if err := os.Setenv("GVISOR_SIDECAR_BINARIES_DIR", filepath.Join(job.Run, "none")); err != nil {
		return nil, err
	}
	log, err := openLog(filepath.Join(job.Dir, LogName))
	if err != nil {
		return nil, err
	}
	dir := statedir.Dir(job.State)
	k := &keeper{failed: make(chan error, 1)}
	var undo undoStack
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	if k.lock, err = dir.LockKeeper(job.Spec.ID); err != nil {
		return nil, atoll.E("start", job.Spec.ID, atoll.ErrConflict, err)
	}
	undo.add(k.lock.Release)
	k.box = newBox(&job, dir, log)
	if err := k.box.boot(&undo); err != nil {
		return nil, err
	}
	if err := k.listen(); err != nil {
		return nil, err
	}
	undo.add(k.close)
	if err := dropMain(job.Dir); err != nil {
		return nil, atoll.E("start", job.Spec.ID, atoll.ErrInternal, err)
	}
	if err := k.box.runMain(context.Background()); err != nil {
		return nil, err
	}
	k.box.mu.Lock()
	err = k.box.save()
	k.box.mu.Unlock()
	return k, err
}

// argument is the i-th of the command line, "" if there are not so many.
func argument(i int) string {
	if i < len(os.Args) {
		return os.Args[i]
	}
	return ""
}

// boot prepares what the sandbox is made of and starts the sentry.
func (b *box) boot(undo *undoStack) error {
	fail := func(err error) error { return atoll.E("start", b.ID(), bootKind(err), err) }
	network, err := newNetwork(b.job.Spec.Network, b.log)
	if err != nil {
		return fail(err)
	}
	undo.add(func() { _ = network.close() })
	b.network = network
	root, err := b.prepareRoot()
	if err != nil {
		return fail(err)
	}
	if err := checkTargets(root, b.job.Mounts); err != nil {
		return atoll.E("start", b.ID(), atoll.ErrInvalid, err)
	}
	b.sentry, err = startSentry(b.job, root, network.path)
	if err != nil {
		return fail(b.lastWords(err))
	}
	undo.add(func() { _ = b.sentry.destroy() })
	b.files = newFiles(b)
	go b.watchSentry()
	if err := b.restoreUpper(); err != nil {
		return fail(err)
	}
	if err := b.giveVolume(); err != nil {
		return fail(err)
	}
	return b.makeWorkdir()
}

// lastWords adds to err what the sentry or the gofer said before it died: all
// that gVisor itself reports of that is an end of file.
func (b *box) lastWords(err error) error {
	data, readErr := os.ReadFile(filepath.Join(b.job.Dir, SentryLogName))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if readErr != nil || lines[0] == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, lines[0])
}

// giveVolume gives a data volume that is still root's to the default user, who
// is to work in it.
func (b *box) giveVolume() error {
	cred, err := b.resolveUser(b.defaultUser())
	if err != nil {
		return atoll.E("start", b.ID(), atoll.ErrInvalid, err)
	}
	if cred.uid == 0 {
		return nil
	}
	volume := b.dir.Volume(b.job.Spec.Project, statedir.DataVolume(b.ID()))
	info, err := os.Stat(volume)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
		return nil
	}
	return os.Chown(volume, int(cred.uid), int(cred.gid))
}

// bootKind finds the kind of an error that gVisor gave as text.
func bootKind(err error) atoll.Kind {
	if k := atoll.KindOf(err); k != atoll.ErrInternal {
		return k
	}
	switch text := err.Error(); {
	case errors.Is(err, unix.ENOTDIR), strings.Contains(text, "not a directory"):
		return atoll.ErrInvalid
	case errors.Is(err, unix.ENOSPC), strings.Contains(text, "no space left"):
		return atoll.ErrExhausted
	case errors.Is(err, unix.EPERM), strings.Contains(text, "operation not permitted"):
		return atoll.ErrUnavailable
	}
	return atoll.ErrInternal
}

// prepareRoot lays out the root file system in this process's own mount
// namespace and returns its path.
func (b *box) prepareRoot() (string, error) {
	// Nothing that is mounted here is seen outside; what is unmounted there goes
	// here too, or devices of the host would be busy as long as a sandbox lives.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return "", fmt.Errorf("detach mounts: %w", err)
	}
	if err := b.mountDisk(); err != nil {
		return "", err
	}
	base := filepath.Join(b.job.Dir, "rootfs")
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	root := base
	if err := b.layOut(&root); err != nil {
		return "", err
	}
	// And nothing that the host mounts later is seen in the sandbox.
	if err := unix.Mount("", base, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("make mounts private: %w", err)
	}
	return root, furnish(root, netFiles(hostname(&b.job.Spec), b.network.resolver))
}

// layOut makes the root file system at root, or below it.
func (b *box) layOut(root *string) (err error) {
	if b.job.Root == "" {
		if err := hostRoot(*root, b.job.HostPaths); err != nil {
			return fmt.Errorf("host root file system: %w", err)
		}
		return nil
	}
	if *root, err = imageRoot(*root, b.job.Root); err != nil {
		return fmt.Errorf("root file system of %s: %w", b.record.Status.Image, err)
	}
	return nil
}

// diskName is where, in Job.Run, the sandbox's own directory is mounted for
// gVisor to keep the overlay's upper layer in: on disk, and under a path that
// has none of the characters that separate gVisor's options.
const diskName = "disk"

func (b *box) mountDisk() error {
	if strings.ContainsAny(b.job.Run, ",:=") {
		return atoll.Errorf("start", b.ID(), atoll.ErrInvalid, "run directory %s: its path must not contain ',', ':' or '='", b.job.Run)
	}
	disk := filepath.Join(b.job.Run, diskName)
	if err := os.Mkdir(disk, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Mount(b.job.Dir, disk, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", disk, err)
	}
	return nil
}

// unmount takes away, in this process's mount namespace, what lies on the
// directories that are to be removed.
func (b *box) unmount() error {
	var errs []error
	for _, path := range []string{filepath.Join(b.job.Run, diskName), filepath.Join(b.job.Dir, "rootfs")} {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func newBox(job *Job, dir statedir.Dir, log *slog.Logger) *box {
	record := job.Record
	record.Keeper, _ = statedir.Identify(os.Getpid()) // without it, the lock still tells
	st := &record.Status
	st.State, st.Ready, st.Reason, st.Exit = atoll.StateRunning, true, "", nil
	st.Started, st.Stopped = time.Now(), time.Time{}
	table := process.NewTable()
	table.EndedOutput = endedOutput(job.Spec.Resources.Memory)
	return &box{
		job: job, dir: dir, log: log, record: &record, table: table,
		cgroup: cgroup.Open(cgroup.Root).Group(job.Record.Cgroup),
		over:   make(chan struct{}), done: make(chan struct{}),
	}
}

// endedOutput is how much output of commands that have ended is kept: this
// process shares the sandbox's memory, of which a part has to do.
func endedOutput(memory atoll.Bytes) int64 {
	if memory <= 0 {
		return process.DefaultEndedOutput
	}
	return min(int64(memory)/16, process.DefaultEndedOutput)
}

// listen serves the API of the one sandbox.
func (k *keeper) listen() error {
	l, err := listen(k.box.job.Dir)
	if err != nil {
		return err
	}
	k.handler, err = api.NewHandler(single{k.box}, api.Options{Log: k.box.log})
	if err != nil {
		l.Close()
		return err
	}
	k.server = &http.Server{Handler: k.box.use.counts(k.handler), ErrorLog: slog.NewLogLogger(k.box.log.Handler(), slog.LevelError)}
	go func() { k.failed <- k.server.Serve(l) }()
	go k.box.watchTTL()
	go k.box.watchIdle()
	return nil
}

// serve returns when the sandbox has come to its end and whoever ended it has
// his answer.
func (k *keeper) serve() {
	select {
	case <-k.box.done:
	case err := <-k.failed:
		k.box.log.Error("serve", "err", err)
		if k.box.begin() {
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

// openLog opens the keeper's log, which holds what gVisor warns of as well.
func openLog(path string) (*slog.Logger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	gvisorlog.SetTarget(&gvisorlog.GoogleEmitter{Writer: &gvisorlog.Writer{Next: f}})
	gvisorlog.SetLevel(gvisorlog.Warning)
	return slog.New(slog.NewTextHandler(f, nil)), nil
}

// An undoStack holds what takes back the steps made so far.
type undoStack []func()

func (u *undoStack) add(f func()) { *u = append(*u, f) }

func (u *undoStack) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}
