// Package fsutil adds to package os what programs need that store their state in plain
// files: atomic file replacement, file locks, and the removal of directory trees whatever
// their permissions.
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

// Temporary is what the names of files end with that are to replace others. One
// is left when its writer is killed.
const Temporary = ".tmp"

// WriteFile replaces the file, for its owner only, as a whole: whoever reads it
// finds what was there before, or data. Two at once must not write to the same
// file. A power cut soon afterwards may leave an empty one.
func WriteFile(path string, data []byte) error { return replace(path, bytesOf(data), false) }

// Replace is WriteFile with what write writes.
func Replace(path string, write func(io.Writer) error) error { return replace(path, write, false) }

// WriteJSON is WriteFile with v as JSON.
func WriteJSON(path string, v any) error { return writeJSON(path, v, false) }

// SyncJSON is WriteJSON for what must not be damaged by a power cut either: it
// waits for the disk. That the file was replaced may still be forgotten then.
func SyncJSON(path string, v any) error { return writeJSON(path, v, true) }

func writeJSON(path string, v any, sync bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return replace(path, bytesOf(data), sync)
}

func bytesOf(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func replace(path string, write func(io.Writer) error, sync bool) error {
	temp := path + Temporary
	err := create(temp, write, sync)
	if err == nil {
		err = Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error counts
	}
	return err
}

func create(path string, write func(io.Writer) error, sync bool) error {
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

// Sync waits until the files of dir, and dir itself, are on disk. Windows keeps directories
// by itself.
func Sync(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := syncFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return syncFile(dir)
}
