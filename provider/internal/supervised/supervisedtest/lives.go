//go:build linux

package supervisedtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed46cd37a8/atoll"
)

// ChurnSandbox leads one sandbox through its life, while others may do the same: an error
// that is due to them is none.
func ChurnSandbox(p atoll.Provider, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*WaitLimit)
	defer cancel()
	expected := func(err error) bool {
		switch atoll.KindOf(err) {
		case "", atoll.ErrNotFound, atoll.ErrAlreadyExists, atoll.ErrStopped, atoll.ErrConflict:
			return true
		}
		return false
	}
	spec := atoll.Spec{ID: id, Name: "n" + id[:8]}
	if p.Info().Caps.MemoryLimit {
		spec.Resources.Memory = 1 << 30
	}
	sb, err := p.Create(ctx, &spec)
	if !expected(err) {
		return fmt.Errorf("create: %w", err)
	}
	if err != nil {
		if sb, err = p.Get(ctx, id); err != nil {
			return nil
		}
	}
	write := &atoll.Command{Args: []string{"sh", "-c", "echo work > file; echo root > /root/file"}}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"exec", func() error { return atoll.Run(ctx, sb, write) }},
		{"stop", func() error { return sb.Stop(ctx, 0) }},
		{"start", func() error { return sb.Start(ctx) }},
		{"remove", func() error { return sb.Remove(ctx, atoll.RemoveVolumes()) }},
	} {
		err := step.do()
		if _, killed := errors.AsType[*atoll.ExitError](err); !expected(err) && !killed { // by another's stop
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// RemoveAll removes all sandboxes.
func (l *Lab) RemoveAll() {
	l.T.Helper()
	list, err := l.List(l.Context(), atoll.Filter{})
	l.Must("list", err)
	for _, st := range list {
		sb, err := l.Get(l.Context(), st.ID)
		l.Must("get", err)
		l.RemoveSandbox(sb)
	}
}

// AwaitSettled waits until the sandbox is in a lasting state that is its actual one, and
// returns it.
func (l *Lab) AwaitSettled(id string) (state atoll.State) {
	l.T.Helper()
	l.Poll(func() error {
		sb, err := l.Get(l.Context(), id)
		if atoll.KindOf(err) == atoll.ErrNotFound {
			state = atoll.StateRemoved
			return nil
		}
		if err != nil {
			return err
		}
		st, err := sb.Status(l.Context())
		if err != nil {
			return err
		}
		switch state = st.State; state {
		case atoll.StateRunning:
			return atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"true"}})
		case atoll.StateStopped, atoll.StateFailed:
			if err := sb.Start(l.Context()); err != nil {
				return err
			}
			return atoll.Run(l.Context(), sb, &atoll.Command{Args: []string{"true"}})
		}
		return fmt.Errorf("state %s", state)
	})
	return state
}
