package remote

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// Create implements atoll.Provider.
func (p Provider[O]) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	e := p.e
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	spec, err := spec.Complete(e.Name)
	if err != nil {
		return nil, err
	}
	if err := e.backend.CheckSpec(spec); err != nil {
		return nil, err
	}
	if err := volume.CheckMounts(spec); err != nil {
		return nil, err
	}
	if err := e.backend.Open(ctx, "create"); err != nil {
		return nil, err
	}
	release, err := e.locks.Lock(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	c := &Creation[O]{e: e, Spec: spec}
	if err := c.runSteps(ctx); err != nil {
		c.undoSteps()
		return nil, e.backend.WrapError(ctx, "create", spec.ID, err)
	}
	e.Sweeper.Wake() // it may have an expiry
	return e.wrap(e.NewHandle(spec.ID)), nil
}

// A Creation is the creation of one sandbox. If it fails, it is undone, last things first.
type Creation[O any] struct {
	Spec   *atoll.Spec
	Record *Record[O] // nil until it is stored

	e    *Engine[O]
	undo []func(context.Context) error
}

// OnUndo makes a failure of a later step call undo, after all runs and the record are deleted.
func (c *Creation[O]) OnUndo(undo func(context.Context) error) { c.undo = append(c.undo, undo) }

func (c *Creation[O]) runSteps(ctx context.Context) error {
	if err := steps.Run(ctx, c.e.Step, steps.Step{Name: "record", Do: c.writeRecord}); err != nil {
		return err
	}
	leased, stop := c.e.keepLease(ctx, c.Record)
	defer stop()
	err := steps.Run(leased, c.e.Step, slices.Concat(
		[]steps.Step{{Name: "name", Do: c.claimName}},
		c.e.backend.Prepare(c),
		[]steps.Step{{Name: "start", Do: c.startSandbox}},
	)...)
	if err != nil {
		return leaseError(leased, "create", c.Spec.ID, err)
	}
	stop()
	return steps.Run(ctx, c.e.Step, steps.Step{Name: "made", Do: c.finishRecord})
}

// undoSteps deletes what the creation has made.
func (c *Creation[O]) undoSteps() {
	if c.Record == nil {
		return
	}
	err := RunCleanup(func(ctx context.Context) error {
		err := c.e.dropSandbox(ctx, c.Record)
		for _, undo := range slices.Backward(c.undo) {
			err = errors.Join(err, undo(ctx))
		}
		return err
	})
	if err != nil {
		c.e.Log.Error("create: undo", "sandbox", c.Spec.ID, "err", err)
	}
}

// writeRecord stores the record of a sandbox that is being created. It removes the remains of
// an abandoned creation first. Kinds: ErrAlreadyExists.
func (c *Creation[O]) writeRecord(ctx context.Context) error {
	err := c.insertRecord(ctx)
	if !errors.Is(err, ErrDoneElsewhere) {
		return err
	}
	left, err := c.e.backend.Find(ctx, "create", c.Spec.ID, Stored)
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound: // removed meanwhile
	case err != nil:
		return err
	case !left.Note.IsAbandoned(time.Now()):
		return c.idTakenError()
	default:
		if err := c.e.dropSandbox(ctx, left); err != nil {
			return err
		}
	}
	if err = c.insertRecord(ctx); errors.Is(err, ErrDoneElsewhere) {
		return c.idTakenError()
	}
	return err
}

func (c *Creation[O]) insertRecord(ctx context.Context) error {
	now := time.Now().UTC()
	r := &Record[O]{Note: Note{
		Spec: *c.Spec, CreationID: atoll.NewID(), Created: now, State: atoll.StateCreating,
		LeaseExpires: now.Add(c.e.LeaseTTL), Volume: !c.e.Ephemeral,
	}}
	if r.ID = c.Spec.ID; c.Spec.TTL > 0 {
		r.Note.Expires = now.Add(time.Duration(c.Spec.TTL))
	}
	return RunToEnd(ctx, func(ctx context.Context) error {
		err := c.e.backend.Insert(ctx, r)
		if err == nil {
			c.Record = r
		}
		return err
	})
}

func (c *Creation[O]) idTakenError() error {
	return atoll.Errorf("create", c.Spec.ID, atoll.ErrAlreadyExists, "a sandbox with this id already exists")
}

// claimName takes the sandbox's name. If another sandbox has it, the error names that one.
func (c *Creation[O]) claimName(ctx context.Context) error {
	if c.Spec.Name == "" {
		return nil
	}
	holder, err := c.e.backend.ClaimName(ctx, c.Record)
	if holder != "" && err == nil {
		return atoll.Errorf("create", c.Spec.Name, atoll.ErrAlreadyExists, "sandbox %s already has the name", holder)
	}
	return err
}

// startSandbox starts the sandbox, unless the spec says NoStart.
func (c *Creation[O]) startSandbox(ctx context.Context) error {
	if c.Spec.NoStart {
		return nil
	}
	c.e.Guests.Cancel(c.Spec.ID) // of an earlier sandbox with this id
	return c.e.backend.Launch(ctx, c.Record)
}

// finishRecord records that the creation is complete.
func (c *Creation[O]) finishRecord(ctx context.Context) error {
	began := c.Record.Note
	return RunToEnd(ctx, func(ctx context.Context) error {
		return c.e.backend.Update(ctx, c.Record, func(n *Note) error {
			if n.Removing {
				return lostLeaseError("create", c.Spec.ID)
			}
			if n.State != atoll.StateCreating { // this program has written it, and the answer was lost
				return nil
			}
			n.LeaseExpires = time.Time{}
			if n.State = atoll.StateCreated; !c.Spec.NoStart {
				n.markRunning(&began)
			}
			return nil
		})
	})
}

// keepLease renews the lease of a creation or a start until stop is called, because to pull or
// build an image may take minutes. It ends leased if the lease is lost: another program may start
// the sandbox then.
func (e *Engine[O]) keepLease(ctx context.Context, r *Record[O]) (leased context.Context, stop func()) {
	of, starter := *r, r.Note.Starter
	leased, lose := context.WithCancelCause(ctx)
	end := guestproc.RunEvery(ctx, e.LeaseTTL/3, func(ctx context.Context) {
		err := e.backend.Update(ctx, &of, func(n *Note) error {
			if n.Starter != starter || n.Removing {
				return ErrDoneElsewhere
			}
			n.LeaseExpires = time.Now().Add(e.LeaseTTL).UTC()
			return nil
		})
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, ErrDoneElsewhere), atoll.KindOf(err) == atoll.ErrNotFound:
			lose(ErrDoneElsewhere)
		default:
			e.Log.Warn("cannot renew the lease of a creation or a start", "sandbox", of.ID, "err", err)
		}
	})
	return leased, func() { end(); lose(nil) }
}

// leaseError returns the error of a creation or a start that has failed with err: another one if
// the reason is that its lease was lost.
func leaseError(leased context.Context, op, id string, err error) error {
	if context.Cause(leased) == ErrDoneElsewhere {
		return lostLeaseError(op, id)
	}
	return err
}

func lostLeaseError(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrConflict, "it took too long: another program has started or removed the sandbox")
}
