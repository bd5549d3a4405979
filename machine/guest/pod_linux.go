package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Where the parts of a pod meet: the program for the first process of the sandbox, and a
// pipe that this holds open as long as it lives.
const (
	installed = "guest"
	pulse     = "alive"
	word      = "config" // a pipe through which one that waits for its configuration gets it
)

// Install puts this program into dir, from which a container of the same pod runs it.
func Install(dir string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	if os.Geteuid() == 0 { // then there are other users in the pod, who are not to put a program of theirs in its place
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	if err := makePulse(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, installed)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, self)
	err = errors.Join(err, f.Chmod(0o555), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, installed)) // whole, or not at all
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// makePulse makes that pipe, unless it is there: Outlive and Install do not wait for
// each other.
func makePulse(dir string) error {
	path := filepath.Join(dir, pulse)
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// Alive is to be closed when this program, which was installed as self, ends: Outlive
// waits for that. Where it was not installed it is nothing.
func Alive(self string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(self), pulse), os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// Outlive returns when the program has ended that was installed in dir and started.
func Outlive(dir string) error {
	if err := makePulse(dir); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, pulse), os.O_RDONLY, 0) // blocks until it is started
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

// Told waits until Tell has told the program that was installed as self what it is to be,
// which is a Config as JSON.
func Told(self string) (string, error) {
	path := filepath.Join(filepath.Dir(self), word)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return "", &fs.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	f, err := os.OpenFile(path, os.O_RDONLY, 0) // blocks until somebody writes
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := os.Remove(path); err != nil { // nobody else is to
		return "", err
	}
	text, err := io.ReadAll(f)
	return string(text), err
}

// tellFor is how long a program may take to wait: it may just have been started.
const tellFor = 5 * time.Second

// Tell tells the program that was installed as self, and waits in Told, what it is to be.
// It fails when that was told before.
func Tell(self string, config io.Reader) error {
	var text json.RawMessage
	if err := json.NewDecoder(config).Decode(&text); err != nil { // its end is not always told
		return err
	}
	path := filepath.Join(filepath.Dir(self), word)
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	for end := time.Now().Add(tellFor); err != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		f, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0) // which fails while nobody reads
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// How long Reach tries, and each time: what a policy says of a pod may be so only a while
// after the pod has been started.
const (
	reachFor   = 8 * time.Second
	reachLast  = 2 * time.Second
	reachEvery = 250 * time.Millisecond
)

// Reach fails unless a TCP port can be reached, at the end of a time in which that may
// change.
func Reach(address string) error {
	var last error
	var d net.Dialer
	for end := time.Now().Add(reachFor); time.Now().Before(end); time.Sleep(reachEvery) {
		ctx, cancel := context.WithTimeout(context.Background(), reachLast)
		conn, err := d.DialContext(ctx, "tcp", address)
		cancel()
		if last = err; err == nil {
			_ = conn.Close()
		}
	}
	return last
}
