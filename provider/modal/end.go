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

// A sandboxEnd describes how a sandbox's run ended.
type sandboxEnd struct {
	state  atoll.State
	exit   *atoll.Exit // of its main process; nil if it had none
	reason string
	idle   bool // it ended because it was idle
}

// endOf returns the end of a sandbox, from Modal's result and the guest's report.
func endOf(spec *atoll.Spec, result *pb.GenericResult, out *guest.Printed) *sandboxEnd {
	exit := atoll.Exit{Code: int(result.GetExitcode())}
	e := &sandboxEnd{idle: out.Report.Idle, reason: out.Report.Reason}
	trouble := "" // a cause other than the main process
	switch result.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		if trouble = result.GetException(); trouble == "" && exit.Code == 137 {
			trouble = "it was killed, as Modal does when more memory is used than " + spec.Resources.WithDefaults().Memory.String()
		}
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		exit, e.idle, e.reason = killedExit(), false, "it reached Modal's limit of 24 hours: start it again"
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

// stoppedEnd returns the end of a sandbox that was stopped by a call.
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

// killedExit returns the exit of a killed process.
func killedExit() atoll.Exit { return atoll.Exit{Code: 137, Signal: atoll.SIGKILL} }

// errDoneElsewhere reports that another program has already done it.
var errDoneElsewhere = errors.New("another program has done it")

// recordEnd records the end of a run that ended by itself, with the output of its main process.
// It updates r.
func (p *Provider) recordEnd(ctx context.Context, r *record, result *pb.GenericResult) error {
	out, err := p.readOutput(ctx, r)
	if err != nil {
		if ctx.Err() == nil {
			p.unreadLogs.add(r.note.Instance)
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

// writeEnd records the end of a run: e, unless a program is stopping the sandbox. Errors:
// errDoneElsewhere, and those of updateRecord.
func (p *Provider) writeEnd(ctx context.Context, r *record, e *sandboxEnd, out *guest.Printed) error {
	instanceID := r.note.Instance
	if err := p.storeOutput(ctx, r, out); err != nil {
		return err
	}
	return p.updateRecord(ctx, r, func(n *note) error {
		if n.State != atoll.StateRunning || n.Instance != instanceID {
			return errDoneElsewhere
		}
		e := e
		if n.Stopping {
			e = stoppedEnd(&n.Spec, out)
		}
		n.State, n.Exit, n.Reason, n.Idle = e.state, e.exit, e.reason, e.idle
		n.Stopped, n.Stopping, n.Instance, n.Ports = time.Now().UTC(), false, "", nil
		n.Stdout, n.Stderr = out.Stdout.Status().Written, out.Stderr.Status().Written
		return nil
	})
}
