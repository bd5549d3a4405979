//go:build linux

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// Adopt implements supervisor.Adopter.
func (e *engine) Adopt(context.Context, *supervisor.Job) error {
	if err := json.Unmarshal(e.job.Engine, &e.plan); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	e.root.dir = filepath.Join(e.job.Dir, rootName)
	if err := e.root.writeFiles(e.etcFiles()); err != nil { // nothing inside has read them yet
		return err
	}
	if err := unix.Sethostname([]byte(hostName(&e.job.Spec))); err != nil { // of the namespace that this thread has entered
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := errors.Join(e.chownDataVolume(), e.makeWorkdir()); err != nil {
		return err
	}
	before := e.table // of commands that made the sandbox warm
	e.makeTable()
	e.sandbox.Watch()
	return before.Close()
}

// enterHostname has this thread enter the namespace with the host name that the inside sees. Adopt then changes that name on the same
// thread, which is the main one.
func (e *engine) enterHostname() error {
	if err := unix.Setns(int(e.pidfd.Fd()), unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("enter the namespace of the host name: %w", err)
	}
	return nil
}

var _ supervisor.Adopter = (*engine)(nil)
