package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/userdb"
)

// aptCache is the package cache of a Debian system, which belongs to root.
const aptCache = "/var/cache/apt"

// linkCaches links the cache directories of the user to the cache. A process of the user creates
// the links: whatever programs have left in the home directory, or in the cache, gives it no more
// access than any other process of the user.
func (m *Machine) linkCaches(user userdb.User) error {
	own, err := ownCache(m.config.Cache, user)
	if err != nil {
		return err
	}
	names := append(atoll.CacheDirs(), m.config.CachePaths...)
	if user.UID == 0 {
		names = append(names, aptCache)
	}
	slices.Sort(names) // a directory comes before those below it, which its link includes
	p, err := m.buildProgram(&atoll.Command{Args: append([]string{m.config.Self, "cache", own}, names...), Dir: "/"})
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	said, stderr, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	h, err := m.starter.Start(p, process.Stdio{Stdin: null, Stdout: null, Stderr: stderr})
	stderr.Close()
	if err != nil {
		return err
	}
	text, _ := io.ReadAll(io.LimitReader(said, maxStderr))
	if exit := h.Wait(); !exit.Success() {
		return fmt.Errorf("the cache of user %d: %s", user.UID, strings.TrimSpace(string(text)))
	}
	return nil
}

const maxStderr = 4 << 10 // bytes

// ownCache returns the user's own directory in the cache, and creates it if it is missing. Users
// share none: programs that one user leaves there would run as the others, and most tools fail on
// files that they cannot write. It changes nothing that a link in the cache leads to.
func ownCache(cache string, user userdb.User) (string, error) {
	root, err := os.OpenRoot(cache)
	if err != nil {
		return "", err
	}
	defer root.Close()
	name := strconv.FormatUint(uint64(user.UID), 10)
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("the cache of user %s is not a directory: remove the volume %s", name, atoll.CacheVolume)
	}
	if info.Sys().(*syscall.Stat_t).Uid != user.UID {
		err = root.Lchown(name, int(user.UID), int(user.GID))
	}
	return filepath.Join(cache, name), err
}

// LinkCaches links directories to those of the same names in cache, which it creates: names
// relative to the home directory of the environment, and absolute ones, if they exist. It skips
// directories that are not empty, other files, and paths that lead out of the home directory by
// links.
func LinkCaches(cache string, names []string) error {
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) {
		return fmt.Errorf("the home directory %q: must be an absolute path", home)
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return fmt.Errorf("make the home directory: %w", err)
	}
	for _, name := range names {
		base, rel := home, name
		if path.IsAbs(name) {
			if _, err := os.Lstat(name); err != nil {
				continue
			}
			base, rel = "/", name[1:]
		}
		if err := linkCache(base, rel, cache); err != nil {
			return fmt.Errorf("link %s to the cache: %w", path.Join(base, rel), err)
		}
	}
	return nil
}

// linkCache links name below base to the one in cache.
func linkCache(base, name, cache string) error {
	shared, err := os.OpenRoot(cache)
	if err != nil {
		return err
	}
	defer shared.Close()
	if err := shared.MkdirAll(name, 0o755); err != nil {
		return fmt.Errorf("%w; remove the volume %s", err, atoll.CacheVolume)
	}
	here, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer here.Close()
	info, err := here.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := here.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
	case err != nil || !info.IsDir():
		return nil // somebody has put another file there
	default:
		switch err := here.Remove(name); {
		case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, fs.ErrExist), errors.Is(err, syscall.EBUSY):
			return nil // it is in use
		case err != nil:
			return err
		}
	}
	err = here.Symlink(filepath.Join(cache, name), name)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
