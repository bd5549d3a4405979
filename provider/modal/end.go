package modal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// An end is how a sandbox's life has come to its.
type sandboxEnd struct {
	state  atoll.State
	exit   *atoll.Exit // of its main process; nil if it had none
	reason string
	idle   bool // nobody used it
}

// endOf is what the service's result and the guest's last words mean for a sandbox.
func endOf(spec *atoll.Spec, result *pb.GenericResult, out *guest.Printed) *sandboxEnd {
	exit := atoll.Exit{Code: int(result.GetExitcode())}
	e := &sandboxEnd{idle: out.Report.Idle, reason: out.Report.Reason}
	trouble := "" // what is not the main process's doing
	switch result.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		if trouble = result.GetException(); trouble == "" && exit.Code == 137 {
			trouble = "it was killed, as Modal does when more memory is used than " + spec.Resources.WithDefaults().Memory.String()
		}
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		exit, e.idle, e.reason = killedExit(), false, "its time at Modal was over, which is 24 hours: start it again"
	case pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT:
		exit, e.idle, e.reason = killedExit(), true, "nobody used it"
	case pb.GenericResult_GENERIC_STATUS_TERMINATED:
		exit, trouble = killedExit(), cmp.Or(result.GetException(), "somebody else has terminated it: start it again")
	default:
		exit, trouble = killedExit(), cmp.Or(result.GetException(), "Modal has ended it: "+result.GetStatus().String())
	}
	if out.Report.Main != nil {
		exit = *out.Report.Main
		trouble = ""
	} else if n := exit.Code - 128; n > 0 && n <= 64 {
		exit.Signal = atoll.Signal(n)
	}
	if len(spec.Cmd) > 0 {
		exit.Duration = 0
		e.exit = &exit
	}
	exit.Reason = cmp.Or(exit.Reason, trouble)
	if e.state = exit.State(); e.reason != "" {
		e.state = atoll.StateStopped
	}
	if e.state == atoll.StateFailed {
		e.reason = cmp.Or(exit.Reason, fmt.Sprintf("its main process exited with code %d", exit.Code))
	}
	return e
}

// stoppedEnd is the end of a sandbox that somebody has stopped.
func stoppedEnd(spec *atoll.Spec, out *guest.Printed) *sandboxEnd {
	e := &sandboxEnd{state: atoll.StateStopped}
	if len(spec.Cmd) > 0 {
		exit := killedExit()
		if out.Report.Main != nil {
			exit = *out.Report.Main
			exit.Duration = 0
		}
		e.exit = &exit
	}
	return e
}

// killedExit is the end of who was killed.
func killedExit() atoll.Exit { return atoll.Exit{Code: 137, Signal: atoll.SIGKILL} }

// errDoneElsewhere says that somebody else has done it.
var errDoneElsewhere = errors.New("it is done")

// recordEnd writes down how a life has ended that ended of its own, with what its main process
// has printed. r is as it is afterwards.
func (p *Provider) recordEnd(ctx context.Context, r *record, result *pb.GenericResult) error {
	out, err := p.readOutput(ctx, r)
	if err != nil {
		if ctx.Err() == nil {
			p.unreadLogs.add(r.note.Life)
		}
		return err
	}
	e := endOf(&r.note.Spec, result, out)
	err = runToEnd(ctx, func(ctx context.Context) error { return p.writeEnd(ctx, r, e, out) })
	if errors.Is(err, errDoneElsewhere) {
		at, err := p.store.readLatest(ctx, subjectKey(kindSandbox, r.ID))
		if err == nil && (at == nil || at.Deleted) {
			err = atoll.E("stop", r.ID, atoll.ErrNotFound, nil)
		}
		if err == nil {
			*r = *p.decodeRecord(r.ID, at)
		}
		return err
	}
	return err
}

// writeEnd writes down that a life has come to its end: to e, unless somebody stops it. Errors:
// errElse, and those of change.
func (p *Provider) writeEnd(ctx context.Context, r *record, e *sandboxEnd, out *guest.Printed) error {
	life := r.note.Life
	if err := p.storeOutput(ctx, r, out); err != nil {
		return err
	}
	return p.updateRecord(ctx, r, func(n *note) error {
		if n.State != atoll.StateRunning || n.Life != life {
			return errDoneElsewhere
		}
		e := e
		if n.Stopping {
			e = stoppedEnd(&n.Spec, out)
		}
		n.State, n.Exit, n.Reason, n.Idle = e.state, e.exit, e.reason, e.idle
		n.Stopped, n.Stopping, n.Life, n.Ports = time.Now().UTC(), false, "", nil
		n.Stdout, n.Stderr = out.Stdout.Status().Written, out.Stderr.Status().Written
		return nil
	})
}
