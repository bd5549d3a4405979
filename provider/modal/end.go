package modal

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// endOf returns the end of a sandbox, from Modal's result and the guest's report.
func endOf(spec *atoll.Spec, result *pb.GenericResult, out *guest.Printed) *remote.End {
	exit := atoll.Exit{Code: int(result.GetExitcode())}
	e := &remote.End{Idle: out.Report.Idle, Reason: out.Report.Reason}
	trouble := "" // a cause other than the main process
	switch result.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		if trouble = result.GetException(); trouble == "" && exit.Code == 137 {
			trouble = "it was killed, as Modal does when more memory is used than " + spec.Resources.WithDefaults().Memory.String()
		}
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		exit, e.Idle, e.Reason = remote.KilledExit(), false, "it reached Modal's limit of 24 hours: start it again"
	case pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT:
		exit, e.Idle, e.Reason = remote.KilledExit(), true, "nobody used it"
	case pb.GenericResult_GENERIC_STATUS_TERMINATED:
		exit, trouble = remote.KilledExit(), cmp.Or(result.GetException(), "somebody else has terminated it: start it again")
	default:
		exit, trouble = remote.KilledExit(), cmp.Or(result.GetException(), "Modal has ended it: "+result.GetStatus().String())
	}
	if out.Report.Main != nil {
		exit = *out.Report.Main
		trouble = ""
	} else if n := exit.Code - 128; n > 0 && n <= 64 {
		exit.Signal = atoll.Signal(n)
	}
	if len(spec.Cmd) > 0 {
		exit.Duration = 0
		e.Exit = &exit
	}
	exit.Reason = cmp.Or(exit.Reason, trouble)
	if e.State = exit.State(); e.Reason != "" {
		e.State = atoll.StateStopped
	}
	if e.State == atoll.StateFailed {
		e.Reason = cmp.Or(exit.Reason, fmt.Sprintf("its main process exited with code %d", exit.Code))
	}
	return e
}

// recordEnd records the end of a run that ended by itself, with the output of its main process.
// It updates r.
func (p *Provider) recordEnd(ctx context.Context, r *record, result *pb.GenericResult) error {
	out, err := p.readOutput(ctx, r)
	if err != nil {
		if ctx.Err() == nil {
			p.unreadLogs.add(r.Note.Run)
		}
		return err
	}
	e := endOf(&r.Note.Spec, result, out)
	err = remote.RunToEnd(ctx, func(ctx context.Context) error { return p.engine.WriteEnd(ctx, r, e, out) })
	if errors.Is(err, remote.ErrDoneElsewhere) {
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
