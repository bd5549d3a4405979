//go:build unix

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// lockFile takes the lock that one server for each state directory holds. It
// ends with the process, however that ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = atoll.Errorf("serve", "", atoll.ErrAlreadyExists, "a server runs already for %s", filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// bindPrivate listens on a new socket that has mode 0600 from the beginning. It
// is called before anything runs that could make files at the same time.
func bindPrivate(ctx context.Context, path string) (net.Listener, error) {
	defer unix.Umask(unix.Umask(0o177))
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, atoll.E("listen", path, atoll.ErrUnavailable, err)
	}
	return l, nil
}
