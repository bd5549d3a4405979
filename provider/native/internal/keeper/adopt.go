//go:build linux

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	if err := e.setHostname(hostName(&e.job.Spec)); err != nil {
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

// setHostname sets the host name that the inside sees.
func (e *engine) setHostname(name string) error {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/uts", e.pid))
	if err != nil {
		return err
	}
	defer space.Close()
	return onThread(func() error {
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWUTS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return os.NewSyscallError("sethostname", unix.Sethostname([]byte(name)))
	})
}

var _ supervisor.Adopter = (*engine)(nil)
