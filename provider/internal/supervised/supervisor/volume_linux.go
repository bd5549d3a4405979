package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll"
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
	err := s.copyUntilExit(ctx, treecopy.Copy, s.dataVolume(), work)
	if err != nil {
		return fmt.Errorf("copy /work, which no_work would leave out: %w", err)
	}
	return nil
}

// CopyLayer copies the directory with the changes of an overlay. It ends when ctx or the engine does.
func (s *Sandbox) CopyLayer(ctx context.Context, from, to string) error {
	return s.copyUntilExit(ctx, treecopy.CopyLayer, from, to)
}

// copyUntilExit copies a tree. It returns ErrStopped if the engine ends meanwhile.
func (s *Sandbox) copyUntilExit(ctx context.Context, copyTree func(ctx context.Context, from, to string) error, from, to string) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.engine.Exited():
			cancel()
		case <-within.Done():
		}
	}()
	err := copyTree(within, from, to)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return atoll.E("snapshot", s.ID(), atoll.ErrStopped, nil)
	}
	return err
}
