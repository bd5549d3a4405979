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
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/overlay"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
)

// Keep implements supervisor.Engine: it saves the changes of the root file system.
func (e *engine) Keep() error {
	if e.job.Spec.ReadOnlyRoot {
		return nil
	}
	// No process may write meanwhile.
	if err := e.awaitAnswer(0, e.sentry.pause, func() { _ = e.sentry.resume() }); err != nil {
		return err
	}
	limit := int64(e.job.Spec.Resources.Disk)
	if limit <= 0 {
		limit = math.MaxInt64
	}
	err := e.sentry.saveUpper(filepath.Join(e.job.Dir, plan.UpperName), limit)
	if errors.Is(err, errSentryHangs) {
		go func() { _ = e.sentry.resume() }() // once it answers again
		return atoll.E("stop", e.sandbox.ID(), atoll.ErrTimeout, err)
	}
	resume := func(func() bool) error { return e.sentry.resume() }
	return errors.Join(err, e.awaitAnswer(0, resume, func() {}))
}

// saveUpper writes the changes of the root file system, limit bytes at most, to path,
// completely or not at all. The sentry is paused.
//
// gVisor itself would write the whole layer as a tar stream, but reads each file into
// memory for that, holes included. Therefore saveUpper uses only the index of gVisor's
// checkpoint of the file system, which is quickly made, and reads the data from the file
// that backs the layer.
func (s *sentry) saveUpper(path string, limit int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, err := createUnnamed(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer index.Close()
	if err := s.awaitWork(func() error { return s.saveIndex(index) }); err != nil {
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

// saveIndex has the sentry write a checkpoint of the root file system's upper layer to f,
// without the data.
func (s *sentry) saveIndex(f *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	conn, err := s.connectControl()
	if err != nil {
		return fmt.Errorf("connect to the sentry: %w", err)
	}
	defer conn.Close()
	// In this order: manifest, index, page numbers, pages.
	args := boot.FSSaveArgs{FilePayload: urpc.FilePayload{Files: []*os.File{null, f, null, null}}}
	return conn.Call(boot.ContMgrFSSave, &args, nil)
}

// awaitWork returns the result of f, a call that keeps the sentry busy for any time. It returns
// errSentryHangs, and leaves f behind, once the sentry has used hardly any CPU time for
// answerTimeout.
func (s *sentry) awaitWork(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	for used, worked := s.cpuTime(), time.Now(); time.Since(worked) < answerTimeout; {
		select {
		case err := <-done:
			return err
		case <-time.After(answerTimeout / 10):
		}
		if now := s.cpuTime(); now-used > answerTimeout/1000 {
			used, worked = now, time.Now()
		}
	}
	return errSentryHangs
}

// cpuTime returns the CPU time that the sentry's process has used; 0 if it has ended.
func (s *sentry) cpuTime() time.Duration {
	const wholeProcess = 2 // CPUCLOCK_SCHED of the kernel, which has no name for it in its API
	var ts unix.Timespec
	if unix.ClockGettime(int32(^s.sb.Getpid())<<3|wholeProcess, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// connectControl connects to the sentry's control socket, for calls that gVisor's own
// packages do not make. It uses a descriptor, because the path can be longer than a socket
// address.
func (s *sentry) connectControl() (*urpc.Client, error) {
	socket, err := os.OpenFile(s.sb.GetControlSocketPath(), unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	return client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
}

// openStore opens the file in which the sentry keeps the data of the upper layer. The file
// has no name any more, so it is opened through the sentry's descriptor.
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

// createUnnamed opens a new file in dir that vanishes when it is closed.
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

// replaceFile writes the file at path with fill, completely or not at all.
func replaceFile(path string, fill func(io.Writer) error) error {
	temp := path + ".new" // always the same name: supervisors that die leave one file at most
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

// restoreUpper restores the changes of the root file system that the last stop saved. A
// guest unpacks them inside, as a stream.
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
		return fmt.Errorf("restore the saved files: %w", err)
	}
	return nil
}

// unpackUpper unpacks, as the guest, the layer that is its stdin.
func unpackUpper() error { return overlay.Unpack("/", bufio.NewReaderSize(os.Stdin, 1<<20)) }
