//go:build linux

package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
	"github.com/seed46cd37a8/atoll/internal/cgroup"
	"github.com/seed46cd37a8/atoll/internal/kept/statedir"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// steps are those of a start, in their order. Each can fail, and then what
// those before it have made is undone.
var steps = []struct {
	name string
	do   func(k *keeper, undo *undoStack) error
}{
	{"lock", (*keeper).takeLock},
	{"network", (*keeper).makeNetwork},
	{"root", (*keeper).makeRoot},
	{"sentry", (*keeper).startSentry},
	{"upper layer", func(k *keeper, _ *undoStack) error { return k.box.restoreUpper() }},
	{"data volume", func(k *keeper, _ *undoStack) error { return k.box.giveVolume() }},
	{"work directory", func(k *keeper, _ *undoStack) error { return k.box.makeWorkdir() }},
	{"socket", (*keeper).listen},
	{"main process", (*keeper).runMain},
	{"record", (*keeper).saveRecord},
}

// Steps are the names of what a keeper does to start a sandbox, in their order:
// what Job.Fail can name.
func Steps() []string {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = s.name
	}
	return names
}

// boot takes the steps, as long as somebody wants the sandbox. When it fails,
// nothing is left.
func (k *keeper) boot() error {
	var undo undoStack
	for _, s := range steps {
		err := k.planned(s.name)
		if err == nil && HungUp(k.conn) {
			err = atoll.Errorf("start", k.box.ID(), atoll.ErrInternal, "whoever wanted the sandbox has gone")
		}
		if err == nil {
			err = s.do(k, &undo)
		}
		if err != nil {
			_, _ = k.box.waitToEnd(context.Background()) // or its end would be noticed by those who watch, as a death
			undo.run()
			return k.box.bootError(err)
		}
	}
	return nil
}

// bootError is err, or what it means if only gVisor or the system has told.
func (b *box) bootError(err error) error {
	if e := (*atoll.Error)(nil); errors.As(err, &e) {
		return err
	}
	return atoll.E("start", b.ID(), bootKind(err), err)
}

// planned is the failure that a test has planned for that step, if any.
func (k *keeper) planned(step string) error {
	if k.box.job.Fail != step {
		return nil
	}
	return atoll.Errorf("start", k.box.ID(), atoll.ErrUnavailable, "step %q failed as planned", step)
}

func (k *keeper) takeLock(*undoStack) (err error) {
	if k.lock, err = k.box.dir.LockKeeper(k.box.ID()); err != nil {
		return atoll.E("start", k.box.ID(), atoll.ErrConflict, err)
	}
	return nil // it goes with the process, after all else that it holds
}

func (k *keeper) makeNetwork(undo *undoStack) (err error) {
	b := k.box
	if b.network, err = newNetwork(b.job.Spec.Network, b.log); err != nil {
		return err
	}
	undo.add(func() { _ = b.network.close() })
	return nil
}

// makeRoot needs no undoing: all its mounts are this process's own.
func (k *keeper) makeRoot(*undoStack) (err error) {
	if k.root, err = k.box.prepareRoot(); err != nil {
		return err
	}
	return k.box.makePlaces(k.root)
}

func (k *keeper) startSentry(undo *undoStack) (err error) {
	b := k.box
	// What is in it was said by processes of an earlier life.
	if err := os.Remove(filepath.Join(b.job.Dir, SentryLogName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if b.sentry, err = startSentry(b.job, k.root, b.network.path); err != nil {
		return b.lastWords(err)
	}
	undo.add(func() { _ = b.sentry.destroy() })
	b.files = newFiles(b)
	go b.watchSentry()
	return nil
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
// is to work in it: a new one with all that was written to it before the first
// start.
func (b *box) giveVolume() error {
	cred, err := b.resolveUser(context.Background(), b.defaultUser())
	if err != nil {
		return atoll.E("start", b.ID(), atoll.ErrInvalid, err)
	}
	if cred.UID == 0 {
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
	if !b.job.Record.Fresh {
		return os.Chown(volume, int(cred.UID), int(cred.GID))
	}
	return filepath.WalkDir(volume, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(cred.UID), int(cred.GID))
	})
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
		cgroup:  cgroup.Open(cgroup.Root).Group(job.Record.Cgroup),
		renewed: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
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
func (k *keeper) listen(undo *undoStack) error {
	l, err := listen(k.box.job.Dir)
	if err != nil {
		return err
	}
	k.handler, err = api.NewHandler(single{k.box}, api.Options{Log: k.box.log})
	if err != nil {
		l.Close()
		return err
	}
	k.server = &http.Server{Handler: k.box.use.Counts(k.handler), ErrorLog: slog.NewLogLogger(k.box.log.Handler(), slog.LevelError)}
	go func() { k.failed <- k.server.Serve(l) }()
	undo.add(k.close)
	go k.box.watchTTL()
	go k.box.watchIdle()
	return nil
}

func (k *keeper) runMain(undo *undoStack) error {
	dir := k.box.job.Dir
	if err := asideMain(dir); err != nil {
		return err
	}
	undo.add(func() { _ = backMain(dir) })
	return k.box.runMain(context.Background())
}

// saveRecord is not undone: from now on the sandbox is there, whatever becomes of
// who wanted it.
func (k *keeper) saveRecord(*undoStack) error {
	b := k.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.save(); err != nil {
		return err
	}
	if err := dropMain(b.job.Dir); err != nil {
		b.log.Warn("the main process of the last life is still known", "err", err)
	}
	return nil
}

// HungUp reports whether the other end of the socket has no more to say: most
// likely it has died.
func HungUp(conn *os.File) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true // closed
	}
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, _ = unix.Poll(fds, 0) // fails if interrupted, and then reports nothing
	})
	return err != nil || fds[0].Revents != 0
}

// An undoStack holds what takes back the steps made so far.
type undoStack []func()

func (u *undoStack) add(f func()) { *u = append(*u, f) }

func (u *undoStack) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}
