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
type end struct {
	state  atoll.State
	exit   *atoll.Exit // of its main process; nil if it had none
	reason string
	idle   bool // nobody used it
}

// endOf is what the service's result and the guest's last words mean for a sandbox.
func endOf(spec *atoll.Spec, result *pb.GenericResult, out *guest.Printed) *end {
	exit := atoll.Exit{Code: int(result.GetExitcode())}
	e := &end{idle: out.Report.Idle, reason: out.Report.Reason}
	trouble := "" // what is not the main process's doing
	switch result.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		if trouble = result.GetException(); trouble == "" && exit.Code == 137 {
			trouble = "it was killed, as Modal does when more memory is used than " + spec.Resources.WithDefaults().Memory.String()
		}
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		exit, e.idle, e.reason = killed(), false, "its time at Modal was over, which is 24 hours: start it again"
	case pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT:
		exit, e.idle, e.reason = killed(), true, "nobody used it"
	case pb.GenericResult_GENERIC_STATUS_TERMINATED:
		exit, trouble = killed(), cmp.Or(result.GetException(), "somebody else has terminated it: start it again")
	default:
		exit, trouble = killed(), cmp.Or(result.GetException(), "Modal has ended it: "+result.GetStatus().String())
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

// stopped is the end of a sandbox that somebody has stopped.
func stopped(spec *atoll.Spec, out *guest.Printed) *end {
	e := &end{state: atoll.StateStopped}
	if len(spec.Cmd) > 0 {
		exit := killed()
		if out.Report.Main != nil {
			exit = *out.Report.Main
			exit.Duration = 0
		}
		e.exit = &exit
	}
	return e
}

// killed is the end of who was killed.
func killed() atoll.Exit { return atoll.Exit{Code: 137, Signal: atoll.SIGKILL} }

// errElse says that somebody else has done it.
var errElse = errors.New("it is done")

// fold writes down how a life has ended that ended of its own, with what its main process
// has printed. r is as it is afterwards.
func (p *Provider) fold(ctx context.Context, r *record, result *pb.GenericResult) error {
	out, err := p.printed(ctx, r)
	if err != nil {
		if ctx.Err() == nil {
			p.untold.add(r.note.Life)
		}
		return err
	}
	e := endOf(&r.note.Spec, result, out)
	err = settled(ctx, func(ctx context.Context) error { return p.rest(ctx, r, e, out) })
	if errors.Is(err, errElse) {
		at, err := p.book.turn(ctx, subject(kindSandbox, r.ID))
		if err == nil && (at == nil || at.Over) {
			err = atoll.E("stop", r.ID, atoll.ErrNotFound, nil)
		}
		if err == nil {
			*r = *p.decode(r.ID, at)
		}
		return err
	}
	return err
}

// rest writes down that a life has come to its end: to e, unless somebody stops it. Errors:
// errElse, and those of change.
func (p *Provider) rest(ctx context.Context, r *record, e *end, out *guest.Printed) error {
	life := r.note.Life
	if err := p.keepPrinted(ctx, r, out); err != nil {
		return err
	}
	return p.change(ctx, r, func(n *note) error {
		if n.State != atoll.StateRunning || n.Life != life {
			return errElse
		}
		e := e
		if n.Stopping {
			e = stopped(&n.Spec, out)
		}
		n.State, n.Exit, n.Reason, n.Idle = e.state, e.exit, e.reason, e.idle
		n.Stopped, n.Stopping, n.Life, n.Ports = time.Now().UTC(), false, "", nil
		n.Stdout, n.Stderr = out.Stdout.Status().Written, out.Stderr.Status().Written
		return nil
	})
}
