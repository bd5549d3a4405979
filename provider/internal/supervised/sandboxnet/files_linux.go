package sandboxnet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/inroot"
)

// RootFiles are the files of a root file system before the sandbox runs, in the mount namespace of this process. Where a file cannot be
// written to, because it is the host's, RootFiles mount another one over it.
type RootFiles struct {
	Root string // its path here
	Dir  string // for the files that are mounted; RootFiles make it
	// Act calls a function with the rights of root inside. Nil means with those of this process.
	Act func(func() error) error
}

// actInside calls do with the rights of root inside.
func (f RootFiles) actInside(do func() error) error {
	if f.Act == nil {
		return do()
	}
	return f.Act(do)
}

// ReadFile implements trust.Files.
func (f RootFiles) ReadFile(name string) (data []byte, err error) {
	err = f.actInside(func() (err error) {
		data, err = inroot.Files{Root: f.Root}.ReadFile(name)
		return err
	})
	return data, err
}

// WriteFile implements trust.Files.
func (f RootFiles) WriteFile(name string, data []byte) error {
	err := f.actInside(func() error { return inroot.Files{Root: f.Root}.WriteFile(name, data) })
	for _, denied := range []error{unix.EROFS, unix.EACCES, unix.EPERM, unix.EOVERFLOW} {
		if errors.Is(err, denied) {
			return f.coverFile(name, data)
		}
	}
	return err
}

// coverFile mounts a file with the data over an existing one. It fails if not everybody can read that, as everybody can read the other.
func (f RootFiles) coverFile(name string, data []byte) error {
	top, err := unix.Open(f.Root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	target, err := unix.Openat2(top, strings.TrimPrefix(name, "/"), how)
	if err != nil {
		return &os.PathError{Op: "cover", Path: name, Err: err}
	}
	defer unix.Close(target)
	var info unix.Stat_t
	if err := unix.Fstat(target, &info); err != nil {
		return &os.PathError{Op: "cover", Path: name, Err: err}
	}
	if info.Mode&unix.S_IROTH == 0 {
		return &os.PathError{Op: "cover", Path: name, Err: errors.New("it is not for everybody to read")}
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return err
	}
	source := filepath.Join(f.Dir, fmt.Sprintf("%x", sha256.Sum256([]byte(name))))
	if err := os.WriteFile(source, data, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(source, fmt.Sprintf("/proc/self/fd/%d", target), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount over %s: %w", name, err)
	}
	covered, err := unix.Openat2(top, strings.TrimPrefix(name, "/"), how)
	if err != nil {
		return err
	}
	defer unix.Close(covered)
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	return os.NewSyscallError("remount", unix.Mount("", fmt.Sprintf("/proc/self/fd/%d", covered), "", flags, ""))
}
