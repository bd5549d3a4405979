//go:build linux

package sentry

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/overlay"
)

// Keep implements supervisor.Engine: it saves the changes of the root file system.
func (e *engine) Keep() error {
	if e.job.Spec.ReadOnlyRoot {
		return nil
	}
	// Nothing may write while it is being saved.
	if err := e.awaitAnswer(0, e.sentry.pause, func() { _ = e.sentry.resume() }); err != nil {
		return err
	}
	limit := int64(e.job.Spec.Resources.Disk)
	if limit <= 0 {
		limit = math.MaxInt64
	}
	return errors.Join(e.sentry.saveUpper(filepath.Join(e.job.Dir, UpperName), limit), e.sentry.resume())
}

// saveUpper writes what was changed in the root file system, limit bytes at
// most, to path, complete or not at all. The sentry is paused.
//
// gVisor would write the whole layer as a tar stream, but takes each file into
// memory for it, holes included. Of its checkpoint of the file system only the
// index is used, which is quickly made; the data is read from the file that
// backs the layer.
func (s *sentry) saveUpper(path string, limit int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, err := createUnnamed(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer index.Close()
	if err := s.saveIndex(index); err != nil {
		return err
	}
	store, err := s.openStore()
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := index.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return replaceFile(path, func(w io.Writer) error { return overlay.Pack(w, bufio.NewReader(index), store, limit) })
}

// saveIndex has the sentry write to f what a checkpoint says of the root file
// system's upper layer, data left out.
func (s *sentry) saveIndex(f *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	conn, err := s.connectControl()
	if err != nil {
		return fmt.Errorf("reach the sentry: %w", err)
	}
	defer conn.Close()
	// In this order: manifest, index, page numbers, pages.
	args := boot.FSSaveArgs{FilePayload: urpc.FilePayload{Files: []*os.File{null, f, null, null}}}
	return conn.Call(boot.ContMgrFSSave, &args, nil)
}

// connectControl opens a connection to the sentry, for what gVisor's own packages do
// not ask of it. A path can be longer than what a socket address holds; a
// descriptor is not.
func (s *sentry) connectControl() (*urpc.Client, error) {
	socket, err := os.OpenFile(s.sb.GetControlSocketPath(), unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	return client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
}

// openStore opens the file in which the sentry keeps the data of the upper
// layer. It has no name any more: the sentry's descriptor leads to it.
func (s *sentry) openStore() (*os.File, error) {
	dir := fmt.Sprintf("/proc/%d/fd", s.sb.Getpid())
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		link := filepath.Join(dir, e.Name())
		if target, err := os.Readlink(link); err == nil && strings.Contains(target, "/runsc-filestore-") {
			return os.Open(link)
		}
	}
	return nil, errors.New("the sentry has no file for its upper layer")
}

// createUnnamed opens a new file in dir that goes when it is closed.
func createUnnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".index-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// replaceFile writes the file at path with fill, complete or not at all.
func replaceFile(path string, fill func(io.Writer) error) error {
	temp := path + ".new" // always the same: a supervisor that dies leaves one at most
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// restoreUpper gives the root file system what was saved of it when the
// sandbox was stopped. It is unpacked inside, as a stream.
func (e *engine) restoreUpper() error {
	if e.job.Upper == "" {
		return nil
	}
	f, err := os.Open(e.job.Upper)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := e.runSelf(f, GuestArgv0, "unpack"); err != nil {
		return fmt.Errorf("its saved files could not be restored: %w", err)
	}
	return nil
}

// unpackUpper is what a guest does with the layer that is its stdin.
func unpackUpper() error { return overlay.Unpack("/", bufio.NewReaderSize(os.Stdin, 1<<20)) }
