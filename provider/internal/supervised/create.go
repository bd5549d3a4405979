package supervised

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/treecopy"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// A creation is one Create in progress. Each of its steps can fail; undoCreation takes back
// those that were done.
type creation struct {
	p          *Provider
	rec        *statedir.Record
	lock       *fsutil.Lock      // held until Create returns; nil before the first step
	newVolumes []string          // named volumes that did not exist before
	work       bool              // the snapshot that it starts from has the files of the data volume
	booted     *bootedSupervisor // has booted for the sandbox; nil if there is none, or no longer
}

// checkStep returns the error that a test planned for the step with that name, if any.
func (p *Provider) checkStep(name string) error {
	if p.opts.Step == nil {
		return nil
	}
	return p.opts.Step(name)
}

// undoCreation removes everything that the creation made. If it fails, a record remains, by
// which a sweep finds the rest.
func (c *creation) undoCreation() {
	if c.booted != nil {
		c.p.stock.returnOrKill(c.booted, c.lock == nil)
	}
	if c.lock == nil {
		return
	}
	if err := c.p.deleteSandbox(c.rec, atoll.RemoveOptions{Volumes: c.rec.Fresh}); err != nil {
		c.p.log.Error("create: undo", "sandbox", c.rec.Status.ID, "err", err)
	}
	for _, name := range c.newVolumes {
		_ = c.p.removeVolume(c.rec.Status.Spec.Project, name) // unless another sandbox uses it by now
	}
}

// reserveID reserves the id and the name, and writes the record.
func (c *creation) reserveID(ctx context.Context) (err error) {
	st, dir := &c.rec.Status, c.p.dir
	if err := c.p.checkStep("id"); err != nil {
		return err
	}
	c.lock, err = c.makeDir()
	if errors.Is(err, fs.ErrExist) && c.p.clearRemains(ctx, st.ID) {
		c.lock, err = c.makeDir()
	}
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return atoll.Errorf("create", st.ID, atoll.ErrAlreadyExists, "sandbox %s already exists", st.ID)
		}
		return atoll.E("create", st.ID, diskKind(err), err)
	}
	c.rec.Run, c.rec.Cgroup = filepath.Join(c.p.opts.RunDir, st.ID), c.p.cgroupPath(st.ID)
	if c.booted != nil {
		c.rec.Cgroup = c.booted.path
	}
	if name := st.Spec.Name; name != "" {
		if err := c.p.checkStep("name"); err != nil {
			return err
		}
		err := dir.ClaimName(st.Spec.Project, name, st.ID)
		if owner, _ := dir.NameOwner(st.Spec.Project, name); errors.Is(err, fs.ErrExist) && c.p.clearRemains(ctx, owner) {
			err = dir.ClaimName(st.Spec.Project, name, st.ID)
		}
		if errors.Is(err, fs.ErrExist) {
			return atoll.Errorf("create", name, atoll.ErrAlreadyExists, "a sandbox named %q already exists in project %q", name, st.Spec.Project)
		}
		if err != nil {
			return atoll.E("create", st.ID, diskKind(err), err)
		}
	}
	c.rec.Fresh = st.Caps.Volumes && !dir.Volumes().Has(st.Spec.Project, statedir.DataVolume(st.ID))
	return c.writeRecord()
}

// makeDir makes the sandbox's directory, which the booted supervisor has already, and takes
// the sandbox's lock.
func (c *creation) makeDir() (*fsutil.Lock, error) {
	if c.booted != nil {
		l, err := c.booted.begun.Assign(c.p.dir, c.rec.Status.ID)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return l, err
		}
		c.dropBooted(err)
	}
	return c.p.dir.Make(c.rec.Status.ID)
}

func (c *creation) writeRecord() error {
	if err := c.p.checkStep("record"); err != nil {
		return err
	}
	if err := c.p.dir.Write(c.rec); err != nil {
		return atoll.E("create", c.rec.Status.ID, diskKind(err), err)
	}
	c.p.events.publishChanges(c.rec.Status.ID)
	return nil
}

// resolveImage finds the image or the snapshot that the sandbox starts with.
func (c *creation) resolveImage(ctx context.Context) error {
	if err := c.p.checkStep("image"); err != nil {
		return err
	}
	st := &c.rec.Status
	if st.Spec.Snapshot != "" {
		return c.fromSnapshot()
	}
	return c.p.opts.Backend.Image(ctx, c.rec)
}

// prepareMounts makes the volumes and checks the sources of bind mounts. The record exists
// by then, so the volumes count as in use.
func (c *creation) prepareMounts(ctx context.Context) error {
	st, volumes := &c.rec.Status, c.p.dir.Volumes()
	data := statedir.DataVolume(st.ID)
	var names []string
	if st.Caps.Volumes {
		names = append(names, data)
	}
	for _, m := range st.Spec.Mounts {
		switch m.Type {
		case atoll.MountVolume:
			names = append(names, m.Source)
		case atoll.MountBind:
			if err := checkBindSource(m.Source); err != nil {
				return err
			}
		}
	}
	c.p.warnOfSharedVolumes(st)
	for _, name := range names {
		if err := c.p.checkStep("volume"); err != nil {
			return err
		}
		if name != data && !volumes.Has(st.Spec.Project, name) {
			c.newVolumes = append(c.newVolumes, name)
		}
		if name == data && c.booted != nil {
			err := volumes.MakeFrom(filepath.Join(c.p.dir.Sandbox(st.ID), bootedVolume), st.Spec.Project, name)
			if err == nil {
				continue
			}
			c.dropBooted(err) // the volumes of this project may be in another file system
		}
		if err := volumes.Make(st.Spec.Project, name); err != nil {
			return atoll.E("create", st.ID, atoll.KindOf(err), err)
		}
	}
	if c.work && st.Caps.Volumes {
		return c.restoreWork(ctx, volumes.Path(st.Spec.Project, data))
	}
	return nil
}

// restoreWork copies the files of the data volume from the snapshot.
func (c *creation) restoreWork(ctx context.Context, volume string) error {
	st := &c.rec.Status
	from := filepath.Join(c.p.dir.Snapshot(st.Spec.Snapshot), statedir.SnapshotWork)
	if !c.rec.Fresh {
		return atoll.Errorf("create", st.ID, atoll.ErrConflict, "the data volume of an earlier sandbox with this id exists, and snapshot %s has other files for it: remove the volume, or choose another id", st.Spec.Snapshot)
	}
	err := treecopy.Copy(ctx, from, volume)
	if _, gone := os.Lstat(from); errors.Is(gone, fs.ErrNotExist) { // it was removed meanwhile
		return noSnapshot("create", st.ID, st.Spec.Snapshot)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return atoll.Errorf("create", st.ID, diskKind(err), "files of snapshot %s: %w", st.Spec.Snapshot, err)
	}
	return nil
}

// checkBindSource checks that the source of a bind mount exists and can be mounted.
func checkBindSource(source string) error {
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return atoll.Errorf("create", "", atoll.ErrNotExist, "mount source %s does not exist", source)
	}
	if err != nil {
		return atoll.E("create", "", diskKind(err), err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return atoll.Errorf("create", "", atoll.ErrInvalid, "mount source %s: only directories and regular files can be mounted", source)
	}
	f, err := os.Open(source)
	if err != nil {
		return atoll.Errorf("create", "", diskKind(err), "mount source: %w", err)
	}
	return f.Close()
}

// checkMountSources checks that all sources of the sandbox's mounts still exist. It does
// not check their permissions, which processes inside will notice.
func (p *Provider) checkMountSources(st *atoll.Status) error {
	for _, m := range p.jobMounts(st) {
		if m.Source == "" { // a tmpfs
			continue
		}
		_, err := os.Stat(m.Source)
		if errors.Is(err, fs.ErrNotExist) {
			return atoll.Errorf("start", st.ID, atoll.ErrNotExist,
				"mount source %s of %s no longer exists: restore it, or remove the sandbox", m.Source, m.Target)
		}
		if err != nil {
			return atoll.E("start", st.ID, diskKind(err), err)
		}
	}
	return nil
}

// startSandbox launches the supervisor, unless the spec asks only for the sandbox's
// creation.
func (c *creation) startSandbox(ctx context.Context) error {
	st := &c.rec.Status
	if st.Spec.NoStart {
		st.State = atoll.StateCreated
		defer c.p.sweeper.Wake()
		return c.writeRecord()
	}
	err := c.adoptBooted(ctx)
	if errors.Is(err, errNoSupervisor) {
		err = c.p.launchSupervisor(ctx, c.rec)
	}
	if err != nil {
		return err
	}
	c.p.events.publishChanges(st.ID)
	c.p.work.Go(func() {
		if err := c.p.dir.Sync(st.ID); err != nil {
			c.p.log.Warn("create: the record is not on disk yet", "sandbox", st.ID, "err", err)
		}
	})
	return nil
}

// lockWait is the longest time that an operation waits for another one on the same sandbox,
// if its ctx allows that much.
const lockWait = time.Minute

// withLock runs fn with the sandbox's lock held, on the record as it is then. It returns
// ErrConflict if another operation holds the lock for longer than lockWait.
func (p *Provider) withLock(ctx context.Context, op, id string, fn func(*statedir.Record) error) error {
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := p.dir.Lock(wait, id)
	defer lock.Release()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return atoll.E(op, id, atoll.ErrNotFound, nil)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return atoll.Errorf(op, id, atoll.ErrConflict, "another operation on this sandbox is in progress")
	}
	rec, err := p.readRecord(op, id)
	if err != nil {
		return err
	}
	if rec.Removing != nil && op != "remove" {
		return atoll.E(op, id, atoll.ErrNotFound, nil)
	}
	return fn(rec)
}
