package fsutil

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// LoadSecret reads a file of at most most bytes that only its owner may read: the user of
// this process, or root. If there is none, it creates one with the bytes from create and
// mode 0600, and reports that with made. The file appears atomically: of two concurrent
// calls one creates it, and both return the same. op is for errors. Kinds: ErrDenied
// (others may read it, or own it), ErrInvalid (too long, or not a file), ErrInternal.
func LoadSecret(op, path string, most int64, create func() ([]byte, error)) (data []byte, made bool, err error) {
	data, err = readSecret(op, path, most)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, false, err
	}
	if data, err = create(); err == nil {
		err = makeSecret(path, data)
	}
	if errors.Is(err, fs.ErrExist) { // another process was faster
		data, err = readSecret(op, path, most)
		return data, false, err
	}
	if err != nil {
		return nil, false, atoll.E(op, path, atoll.ErrInternal, err)
	}
	return data, true, nil
}

// OpenOwned opens a file for reading if it belongs to the user of this process or to root,
// and if no other user has one of the permissions in denied. It does not block on a pipe.
// Kinds: ErrNotExist, and those of LoadSecret.
func OpenOwned(op, path string, denied fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, atoll.E(op, path, atoll.ErrNotExist, nil)
	case errors.Is(err, fs.ErrPermission):
		return nil, atoll.E(op, path, atoll.ErrDenied, err)
	case err != nil:
		return nil, atoll.E(op, path, atoll.ErrInternal, err)
	}
	if err := checkOwned(op, path, f, denied); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkOwned(op, path string, f *os.File, denied fs.FileMode) error {
	fi, err := f.Stat()
	if err != nil {
		return atoll.E(op, path, atoll.ErrInternal, err)
	}
	if !fi.Mode().IsRegular() {
		return atoll.Errorf(op, path, atoll.ErrInvalid, "not a regular file")
	}
	return checkAccess(op, path, fi, denied)
}

func readSecret(op, path string, most int64) ([]byte, error) {
	f, err := OpenOwned(op, path, 0o077)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, atoll.E(op, path, atoll.ErrInternal, err)
	}
	if int64(len(data)) > most {
		return nil, atoll.Errorf(op, path, atoll.ErrInvalid, "it is longer than %d bytes", most)
	}
	return data, nil
}

// makeSecret creates a file atomically: nobody reads half a secret.
func makeSecret(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".secret-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Link(tmp.Name(), path)
}
