//go:build linux

package keeper

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// An ordinary user has the machine's programs as those of somebody else: root inside could not make a file beside them, since an
// overlay copies the owners of directories. A skeleton is a layer between the two, of directories that belong to root inside, for
// those in which people install programs.

// openPlaces lists the patterns of directories below /usr whose directories are in the skeleton. Files beside programs that exist are
// made, renamed and removed there; the content of existing files cannot be changed in place.
var openPlaces = []string{"", "local", "local/*", "local/*/*", "local/*/*/*", "lib/node_modules", "lib/python3*", "lib/python3*/*"}

// maxSkeleton is the most directories of a skeleton: each start of a sandbox makes them.
const maxSkeleton = 256

// needsSkeleton reports whether root inside does not own the directory.
func needsSkeleton(dir string, owners *ids) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && int(st.Uid) != owners.root
}

// makeSkeleton makes the directories of tree that openPlaces names in dir.
func makeSkeleton(dir, tree string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, place := range openPlaces {
		found, err := filepath.Glob(filepath.Join(tree, place, "*"))
		if err != nil {
			return err
		}
		for _, name := range found[:min(len(found), maxSkeleton)] {
			info, err := os.Lstat(name)
			if err != nil || !info.IsDir() {
				continue
			}
			within, err := filepath.Rel(tree, name)
			if err != nil {
				return err
			}
			err = os.Mkdir(filepath.Join(dir, within), info.Mode().Perm())
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) { // its parent is not in the skeleton, or a link; or it was made before
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
