//go:build linux

package keeper

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Pause implements supervisor.Engine.
func (e *engine) Pause(ctx context.Context) error {
	if !e.job.Caps.Pause {
		return atoll.Errorf("pause", e.sandbox.ID(), atoll.ErrUnsupported, "it needs a writable cgroup")
	}
	if e.Frozen() {
		return nil
	}
	release := e.init.Hold() // the first process must not stand still while it is asked for something
	defer release()
	e.freezing.Lock()
	defer e.freezing.Unlock()
	if err := e.inside.Freeze(ctx); err != nil {
		return err
	}
	e.frozen.Store(true)
	return nil
}

// Resume implements supervisor.Engine.
func (e *engine) Resume(context.Context) error {
	if !e.job.Caps.Pause {
		return atoll.Errorf("resume", e.sandbox.ID(), atoll.ErrUnsupported, "it needs a writable cgroup")
	}
	e.freezing.Lock()
	defer e.freezing.Unlock()
	if err := e.inside.Thaw(); err != nil {
		return err
	}
	e.frozen.Store(false)
	return nil
}

// Frozen implements supervisor.Engine.
func (e *engine) Frozen() bool { return e.frozen.Load() }
