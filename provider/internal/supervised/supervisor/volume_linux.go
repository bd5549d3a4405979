package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll/internal/treecopy"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
)

// dataVolume returns the directory of the sandbox's data volume.
func (s *Sandbox) dataVolume() string {
	return s.dir.Volume(s.Job.Spec.Project, statedir.DataVolume(s.ID()))
}

// ChownVolume gives a data volume that still belongs to root to a user; a new one with all files that were written to it before the
// first start.
func (s *Sandbox) ChownVolume(uid, gid int) error {
	if uid == 0 {
		return nil
	}
	volume := s.dataVolume()
	info, err := os.Stat(volume)
	if errors.Is(err, fs.ErrNotExist) { // the provider has no volumes
		return nil
	}
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
		return nil
	}
	if !s.Job.Record.Fresh {
		return os.Chown(volume, uid, gid)
	}
	top, err := os.OpenRoot(volume) // processes from a snapshot may change the files meanwhile
	if err != nil {
		return err
	}
	defer top.Close()
	return fs.WalkDir(top.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = top.Lchown(path, uid, gid)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// CopyVolume copies the data volume for a snapshot in dir. It ends when ctx or the engine does.
func (s *Sandbox) CopyVolume(ctx context.Context, dir string) error {
	work := filepath.Join(dir, statedir.SnapshotWork)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	ctx, stop := s.untilExit(ctx)
	defer stop()
	if err := treecopy.Copy(ctx, s.dataVolume(), work); err != nil {
		return fmt.Errorf("copy /work, which no_work would leave out: %w", err)
	}
	return nil
}

// CopyLayer copies the directory with the changes of an overlay. It ends when ctx or the engine does.
func (s *Sandbox) CopyLayer(ctx context.Context, from, to string) error {
	ctx, stop := s.untilExit(ctx)
	defer stop()
	return treecopy.CopyLayer(ctx, from, to)
}

// untilExit returns a ctx that also ends when the engine has ended, until stop is called.
func (s *Sandbox) untilExit(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.engine.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
