//go:build linux

package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// runProbe tries whether sandboxes work, in a process that is started like a supervisor, in its place. It prints why they do not.
func runProbe() int {
	if err := tryCreate(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// tryCreate creates a sandbox in memory, and removes it. Nothing less shows whether a machine allows it: on some, a user namespace can
// be made, and nothing be done in it.
func tryCreate() (err error) {
	if err := supervisor.OwnMounts(); err != nil {
		return err
	}
	if err := supervisor.AwaitIDs(func() bool { return false }); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("change mounts: %w", err)
	}
	dir := os.TempDir()
	if err := unix.Mount("atoll", dir, "tmpfs", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	job := &supervisor.Job{Dir: dir, Ahead: true, Spec: atoll.Spec{
		ID: atoll.NewID(), Workdir: "/", ReadOnlyRoot: true, Network: atoll.Network{Mode: atoll.NetworkNone},
	}}
	e := &engine{sandbox: &supervisor.Sandbox{Job: job}, job: job}
	e.makeTable()
	e.files = newFiles(e)
	var undo supervisor.Undo
	for _, step := range startSteps {
		if err := step(e, context.Background(), &undo); err != nil {
			return err
		}
	}
	return errors.Join(e.Destroy(), e.Unmount())
}
