package statedir

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// What must not outlive a reboot, gVisor's own state for instance, does not lie in
// the state directory but in a run directory, of each sandbox in a directory of its
// own. Sockets by which sandboxes are ruled lie there as well, so whoever could
// write to it, or put another one in its place, would rule them.

// DefaultRun is the run directory for this state directory and user: below
// $XDG_RUNTIME_DIR, if that is there and this user's, which it is not after su;
// else on Linux /run for root, or /run/user/UID, if there is one; else the temporary
// directory. Its path is short, because that of a socket must be.
func (d Dir) DefaultRun() string {
	base := defaultRunBase()
	if xdg := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(xdg) && isOwnDir(xdg) {
		base = filepath.Join(xdg, "atoll")
	}
	return filepath.Join(base, d.ShortName())
}

// ShortName tells state directories apart, for what belongs to one and is not in it.
func (d Dir) ShortName() string {
	h := fnv.New32a()
	h.Write([]byte(d))
	return fmt.Sprintf("%08x", h.Sum32())
}

// isOwnDir reports whether there is such a directory, and it is this user's alone.
func isOwnDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && ownershipFault(dir, info) == ""
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// MakeRun makes the directory run/id for such state of a sandbox, with what
// is missing above it. What a killed supervisor has left in it is removed, unread:
// the numbers of processes in there may be those of others by now.
//
// It is fs.ErrPermission, and nothing is made or removed there, if others could
// write to run, or replace it.
func (d Dir) MakeRun(run, id string) (path string, err error) {
	path = filepath.Join(run, id)
	const tries = 10 // others may tidy up at the same moment
	for range tries {
		if err = d.makeLevel(run, true); err == nil {
			err = cmp.Or(os.RemoveAll(path), os.Mkdir(path, 0o700))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return path, err
}

// makeLevel makes the directory and those above it, from the top, as far as they
// are missing. Each is looked at before anything is made in it: once it is found
// to be ours alone, own, nobody else can replace it.
func (d Dir) makeLevel(dir string, own bool) error {
	made := own && d.isDefaultRun(dir) // then so is the one above
	if parent := filepath.Dir(dir); parent != dir {
		if err := d.makeLevel(parent, made); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !pathExists(dir) {
		return err
	}
	if own {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		return runDirError(dir, ownershipFault(dir, info))
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return runDirError(dir, shelterFault(dir, info))
}

// isDefaultRun reports whether run has the name that DefaultRun gives: then the
// directory above it is ours too.
func (d Dir) isDefaultRun(run string) bool { return filepath.Base(run) == d.ShortName() }

func runDirError(dir, fault string) error {
	if fault == "" {
		return nil
	}
	return fmt.Errorf("run directory %s %s: set XDG_RUNTIME_DIR to a directory of your own (%w)", dir, fault, fs.ErrPermission)
}

// RemoveRun removes what MakeRun made for a sandbox. Where that has become
// somebody else's, it is left alone.
func RemoveRun(path string) error {
	dir := filepath.Dir(path)
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil || ownershipFault(dir, info) != "" {
		return err
	}
	run, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) { // just tidied up
		return nil
	}
	if err != nil {
		return err
	}
	defer run.Close()
	// What was opened is what was looked at, whatever the path leads to by now.
	if now, err := run.Stat("."); err != nil || !os.SameFile(now, info) {
		return err
	}
	return run.RemoveAll(filepath.Base(path))
}

// TidyRun removes the run directory, and the one above it, as far as they are
// empty and were not given to us; MakeRun makes them again.
func (d Dir) TidyRun(run string) {
	if d.isDefaultRun(run) && os.Remove(run) == nil {
		_ = os.Remove(filepath.Dir(run)) // others may use it
	}
}
