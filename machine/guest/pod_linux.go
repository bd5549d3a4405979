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

// The files that connect the containers of a pod: the program for the first process of the sandbox,
// a pipe that this process holds open as long as it lives, and a pipe for its configuration.
const (
	programFile = "guest"
	alivePipe   = "alive"
	configPipe  = "config" // for a first process that waits for its configuration
)

// Install copies this program into dir, from where a container of the same pod runs it.
func Install(dir string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	if os.Geteuid() == 0 { // other users of the pod must not replace the program
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	if err := makeAlivePipe(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, programFile)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, self)
	err = errors.Join(err, f.Chmod(0o555), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, programFile)) // complete, or not at all
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// makeAlivePipe creates the pipe unless it exists: Outlive and Install do not wait for each other.
func makeAlivePipe(dir string) error {
	path := filepath.Join(dir, alivePipe)
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// Alive returns a file to close when this program, installed as self, ends: Outlive waits for that.
// It returns nil if the program was not installed.
func Alive(self string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(self), alivePipe), os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// Outlive returns when the program that was installed in dir has started and ended.
func Outlive(dir string) error {
	if err := makeAlivePipe(dir); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, alivePipe), os.O_RDONLY, 0) // blocks until the program starts
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

// Told waits until Tell passes the configuration to the program installed as self, and returns it:
// a Config as JSON.
func Told(self string) (string, error) {
	path := filepath.Join(filepath.Dir(self), configPipe)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return "", &fs.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	f, err := os.OpenFile(path, os.O_RDONLY, 0) // blocks until somebody writes
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := os.Remove(path); err != nil { // nobody else may write to it
		return "", err
	}
	text, err := io.ReadAll(f)
	return string(text), err
}

// tellTimeout bounds how long Tell waits for Told: the program may just have been started.
const tellTimeout = 5 * time.Second

// Tell passes the configuration to the program installed as self, which waits in Told. It fails if
// the program has its configuration already.
func Tell(self string, config io.Reader) error {
	var text json.RawMessage
	if err := json.NewDecoder(config).Decode(&text); err != nil { // not ReadAll, since the end of the stream may not arrive
		return err
	}
	path := filepath.Join(filepath.Dir(self), configPipe)
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	for end := time.Now().Add(tellTimeout); err != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		f, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0) // fails while nobody reads
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// The times of Reach: the total, of one attempt, and between attempts. A network policy may take
// effect only some time after the pod has started.
const (
	reachTimeout     = 8 * time.Second
	reachDialTimeout = 2 * time.Second
	reachPause       = 250 * time.Millisecond
)

// Reach fails unless it can connect to a TCP port at the end of a time in which that may change.
func Reach(address string) error {
	var last error
	var d net.Dialer
	for end := time.Now().Add(reachTimeout); time.Now().Before(end); time.Sleep(reachPause) {
		ctx, cancel := context.WithTimeout(context.Background(), reachDialTimeout)
		conn, err := d.DialContext(ctx, "tcp", address)
		cancel()
		if last = err; err == nil {
			_ = conn.Close()
		}
	}
	return last
}
