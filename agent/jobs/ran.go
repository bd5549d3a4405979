package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Ran is the result of a command.
type Ran struct {
	Exit   atoll.Exit    `json:"exit"`
	Took   time.Duration `json:"took"`
	Stdout Text          `json:"stdout"`
	Stderr Text          `json:"stderr"`
	// Process is the id of the command's process in its sandbox.
	Process string `json:"process,omitempty"`

	// Refused lists what the network refused while a command ran that failed, as far as the provider
	// knows it.
	Refused []atoll.Refusal `json:"refused,omitempty"`
	// Allow is the command line by which a user of Atoll opens what was refused; "" if nothing does.
	Allow string `json:"allow,omitempty"`
	// NoNetwork reports that a command failed in a sandbox that has no network.
	NoNetwork bool `json:"no_network,omitempty"`
}

// Run runs a command in a sandbox to its end, and keeps max bytes of each of its streams:
// of the beginning and of the end. When ctx ends first, the command is killed. A
// non-zero exit is no error. report may be nil; see Job. Kinds: those of atoll.Run, and ErrConflict (the sandbox
// ended while the command ran).
func Run(ctx context.Context, sb atoll.Sandbox, cmd *atoll.Command, max int64, report func(time.Duration, string)) (Ran, error) {
	return RunTo(ctx, sb, cmd, NewStream(max), NewStream(max), report)
}

// RunTo is Run with streams of the caller, which RunTo ends.
func RunTo(ctx context.Context, sb atoll.Sandbox, cmd *atoll.Command, stdout, stderr *Stream, report func(time.Duration, string)) (Ran, error) {
	with := *cmd
	with.Stdout, with.Stderr = stdout, stderr
	began := time.Now()
	stop := Reporting(ctx, began, stdout, report)
	box := &starter{Sandbox: sb}
	err := atoll.Run(ctx, box, &with)
	stop()
	if k := atoll.KindOf(err); box.process != "" && (k == atoll.ErrStopped || k == atoll.ErrNotFound) { // callers must not run it again
		err = Interrupted(nil)
	}
	r := Ran{Stdout: stdout.End(), Stderr: stderr.End(), Took: time.Since(began), Process: box.process}
	if failed, ok := errors.AsType[*atoll.ExitError](err); ok {
		r.Exit, err = failed.Exit, nil
		r.findRefusals(ctx, sb, began)
	}
	return r, err
}

// refusalsTimeout limits the time that the result of a failed command waits for the refusals.
const refusalsTimeout = 2 * time.Second

// findRefusals sets what the network refused since began.
func (r *Ran) findRefusals(ctx context.Context, sb atoll.Sandbox, began time.Time) {
	ctx, cancel := context.WithTimeout(ctx, refusalsTimeout)
	defer cancel()
	if all, err := atoll.RefusalsOf(ctx, sb); err == nil { // a result without them is a result, too
		r.Refused, r.NoNetwork = all.Within(time.Since(began)), all.NoNetwork
		if entries := atoll.OpensOf(r.Refused); len(entries) > 0 {
			r.Allow = atoll.AllowCommand(sb.ID(), entries...)
		}
	}
}

// Interrupted returns the error of a command whose sandbox, or container, ended while
// it ran: callers must not run it again without checking its effects. cause may be nil.
// Kind: ErrConflict.
func Interrupted(cause error) error {
	why := ""
	if cause != nil {
		why = fmt.Sprintf(" (%v)", cause)
	}
	return atoll.Errorf("", "", atoll.ErrConflict, "the sandbox ended while the command ran%s, which may have done a part of its work: check its effects, and run it again if needed", why)
}

// A starter records the process of a command that was started.
type starter struct {
	atoll.Sandbox
	process string
}

func (s *starter) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	p, err := s.Sandbox.Exec(ctx, cmd)
	if err == nil {
		s.process = p.ID()
	}
	return p, err
}

// reportEvery is the interval of reports.
const reportEvery = time.Second

// Reporting calls report, if it is not nil, every second with the last line of out,
// until stop is called or ctx ends.
func Reporting(ctx context.Context, began time.Time, out *Stream, report func(time.Duration, string)) (stop func()) {
	if report == nil {
		return func() {}
	}
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				report(time.Since(began), out.lastLine())
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		close(done)
		work.Wait()
	}
}
