// Package fsutil adds to package os the functions of programs that store their state in
// plain files: atomic file replacement, file locks, and the removal of directory trees
// whatever their permissions.
package fsutil

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// ErrLocked says that another process, or another goroutine of this one, holds
// the lock.
var ErrLocked = errors.New("busy with another operation")

// IsFull reports whether err says that there is no space, or no quota, left.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// StateHome returns the directory for the state of the user's programs: $XDG_STATE_HOME, or else
// ~/.local/state.
func StateHome() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // the XDG specification ignores relative paths
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "state"), nil
}

// Temporary is the suffix of the temporary files of WriteFile and its variants. Such a file
// remains if its writer is killed.
const Temporary = ".tmp"

// WriteFile atomically replaces the file, with mode 0600: a reader gets the old content or
// data. There must not be two concurrent writers of one file. A power cut soon afterwards
// may leave an empty file.
func WriteFile(path string, data []byte) error { return replaceFile(path, bytesOf(data), false) }

// Replace is WriteFile with the bytes that write writes. If write fails, the old file stays,
// and Replace returns its error.
func Replace(path string, write func(io.Writer) error) error { return replaceFile(path, write, false) }

// WriteJSON is WriteFile with v encoded as JSON.
func WriteJSON(path string, v any) error { return writeJSON(path, v, false) }

// SyncJSON is WriteJSON for a file that a power cut must not damage either: it waits for
// the disk. A power cut may still bring back the old file.
func SyncJSON(path string, v any) error { return writeJSON(path, v, true) }

func writeJSON(path string, v any, sync bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return replaceFile(path, bytesOf(data), sync)
}

func bytesOf(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func replaceFile(path string, write func(io.Writer) error, sync bool) error {
	temp := path + Temporary
	err := createFile(temp, write, sync)
	if err == nil {
		err = Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error counts
	}
	return err
}

func createFile(path string, write func(io.Writer) error, sync bool) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil && sync {
		err = f.Sync()
	}
	return cmp.Or(err, f.Close())
}

// Sync waits until the files of dir, and dir itself, are on disk. On Windows it does not
// sync directories, which the system does itself.
func Sync(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := SyncFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return SyncFile(dir)
}
