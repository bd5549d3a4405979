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

// State that must not outlive a reboot, gVisor's own for instance, does not lie in
// the state directory but in a run directory, in which each sandbox has a directory of its
// own. Sockets that control sandboxes lie there as well, so a user who could
// write to it, or replace it, would control the sandboxes.

// DefaultRun returns the run directory for this state directory and user: below
// $XDG_RUNTIME_DIR, if it exists, is short, and belongs to this user (after su it does not);
// else on Linux below /run for root, or below /run/user/UID, if it exists; else below the temporary
// directory. Its path is short, because a socket's path must be.
func (d Dir) DefaultRun() string {
	base := defaultRunBase()
	if xdg := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(xdg) && isOwnDir(xdg) && len(xdg) <= maxRuntimeDir {
		base = filepath.Join(xdg, "atoll")
	}
	return filepath.Join(base, d.ShortName())
}

// maxRuntimeDir is the maximum length of XDG_RUNTIME_DIR in bytes; a longer one is not used. The sockets of a virtual machine are in
// atoll/<short name>/<id>/vm below it, and their directory may have 80 bytes.
const maxRuntimeDir = 80 - len("/atoll/01234567/0123456789abcdef0123456789abcdef/vm")

// ShortName returns a hash that distinguishes state directories, for things that belong to
// one and are not in it.
func (d Dir) ShortName() string {
	h := fnv.New32a()
	h.Write([]byte(d))
	return fmt.Sprintf("%08x", h.Sum32())
}

// isOwnDir reports whether dir is a directory that belongs to this user alone.
func isOwnDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && ownershipFault(dir, info) == ""
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// MakeRun makes the directory run/id for state of a sandbox that must not outlive a reboot,
// and missing directories above it. It removes, unread, what a killed supervisor has left
// in it: the process numbers in there may belong to others by now.
//
// It returns fs.ErrPermission, and makes and removes nothing, if others could write to run,
// or replace it.
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

// makeLevel makes the directory and missing ones above it, from the top. It checks each
// before it makes anything in it: once a directory is found to belong to this user alone,
// and own says that it must, nobody else can replace it.
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

// isDefaultRun reports whether run has the name that DefaultRun gives: then the directory
// above it belongs to this user, too.
func (d Dir) isDefaultRun(run string) bool { return filepath.Base(run) == d.ShortName() }

func runDirError(dir, fault string) error {
	if fault == "" {
		return nil
	}
	return fmt.Errorf("run directory %s %s; set XDG_RUNTIME_DIR to a directory of your own (%w)", dir, fault, fs.ErrPermission)
}

// RemoveRun removes what MakeRun made for a sandbox. If the run directory belongs to others
// by now, it leaves it alone.
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
	// Make sure that the opened directory is the checked one: the path may lead elsewhere by now.
	if now, err := run.Stat("."); err != nil || !os.SameFile(now, info) {
		return err
	}
	return run.RemoveAll(filepath.Base(path))
}

// TidyRun removes the run directory, and the one above it, if they are empty and have the
// default name; MakeRun makes them again.
func (d Dir) TidyRun(run string) {
	if d.isDefaultRun(run) && os.Remove(run) == nil {
		_ = os.Remove(filepath.Dir(run)) // others may use it
	}
}
