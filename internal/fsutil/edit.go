package fsutil

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// EditFile replaces the content of a file that people edit, too, with what edit returns. A file that does not exist is
// empty, and created with mode. The new content is written beside the file and renamed; the mode of the file remains,
// and a symbolic link still leads to it. Concurrent calls wait for each other. changed is false if edit returns the old
// content. If edit fails, the file is untouched.
func EditFile(name string, mode fs.FileMode, edit func(data []byte) ([]byte, error)) (changed bool, err error) {
	target, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 { // and no file that was just made
			return false, fmt.Errorf("%s: the link leads to a file that does not exist", name)
		}
		target, err = name, nil
	}
	if err != nil {
		return false, err
	}
	dir := filepath.Dir(target)
	_, err = os.Stat(dir)
	missing := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	lock, err := WaitLock(filepath.Join(dir, "."+filepath.Base(target)+".lock"))
	if err != nil {
		return false, err
	}
	changed, err = editLocked(name, target, mode, edit)
	err = errors.Join(err, lock.Remove())
	if missing && !changed {
		_ = os.Remove(dir) // fails if another program has written to it
	}
	return changed, err
}

// editLocked is EditFile for the file at target, whose lock the caller holds.
func editLocked(name, target string, mode fs.FileMode, edit func(data []byte) ([]byte, error)) (changed bool, err error) {
	old, err := os.ReadFile(target)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	data, err := edit(bytes.Clone(old))
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	if bytes.Equal(data, old) {
		return false, nil
	}
	if exists {
		info, err := os.Stat(target)
		if err != nil {
			return false, err
		}
		mode = info.Mode().Perm()
	}
	if err := replaceEdited(target, old, data, mode); err != nil {
		return false, err
	}
	return true, nil
}

// replaceEdited replaces the content of a file that still has the old content.
func replaceEdited(target string, old, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails if it was renamed
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Chmod(f.Name(), mode); err != nil {
		return err
	}
	now, err := os.ReadFile(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !bytes.Equal(now, old) {
		return fmt.Errorf("%s: another program has changed the file meanwhile: try again", target)
	}
	return os.Rename(f.Name(), target)
}
