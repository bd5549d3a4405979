package remote

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// A Note is the stored state of a sandbox.
type Note struct {
	Spec       atoll.Spec `json:"spec"`
	CreationID string     `json:"made"` // random id of the creation; another sandbox may have the same id later
	Created    time.Time  `json:"created"`
	// State is StateCreating, StateCreated, the state in which the sandbox ended, or
	// StateRunning: then the service tells the actual state of the run.
	State        atoll.State           `json:"state"`
	Run          string                `json:"run,omitempty"`      // the service's id of the run
	LeaseExpires time.Time             `json:"until,omitzero"`     // expiry of the lease of a creation or a start
	Starter      string                `json:"starter,omitempty"`  // random id of the start that holds the lease
	Stopping     bool                  `json:"stopping,omitempty"` // a call is stopping it, which explains the end of its run to every program
	Removing     bool                  `json:"over,omitempty"`     // it has expired and is being removed: no program may start or extend it
	Expires      time.Time             `json:"expires,omitzero"`   // its expiry
	Image        string                `json:"image,omitempty"`    // of the last run
	Started      time.Time             `json:"started,omitzero"`   // when the last run began
	Stopped      time.Time             `json:"stopped,omitzero"`   // when it ended, if it has
	Exit         *atoll.Exit           `json:"exit,omitempty"`     // of the main process
	Reason       string                `json:"reason,omitempty"`   // why it ended
	Idle         bool                  `json:"idle,omitempty"`     // it was stopped because it was idle
	Volume       bool                  `json:"volume,omitempty"`   // it has a data volume
	Ports        []atoll.PublishedPort `json:"ports,omitempty"`    // where the run's ports are published
	Stdout       int64                 `json:"stdout,omitempty"`   // bytes that the main process had written when it ended
	Stderr       int64                 `json:"stderr,omitempty"`

	// Printed, if not nil, is output that Update stores with the note.
	Printed *guest.Printed `json:"-"`
}

// A Record is the state of a sandbox, as far as it is known.
type Record[O any] struct {
	atoll.Status
	Note   Note
	Object O // what the backend has of it
}

// FillStatus sets the status of a record from its note. The state of a running sandbox is for
// the backend to correct.
func (r *Record[O]) FillStatus(provider string, caps atoll.Caps) {
	n := &r.Note
	r.Status = atoll.Status{
		ID: r.ID, Provider: provider, Caps: caps, Created: n.Created, Spec: n.Spec, State: n.State, Image: n.Image,
		Expires: n.Expires, Started: n.Started, Stopped: n.Stopped, Exit: n.Exit, Reason: n.Reason,
	}
}

// IsAbandoned reports whether the creation of the sandbox was abandoned.
func (n *Note) IsAbandoned(now time.Time) bool {
	return n.State == atoll.StateCreating && now.After(n.LeaseExpires)
}

// IsStarting reports whether a program holds the lease of a creation or a start.
func (n *Note) IsStarting(now time.Time) bool { return now.Before(n.LeaseExpires) }

// markRunning records that a run of the sandbox has begun, as Launch has set it in began.
func (n *Note) markRunning(began *Note) {
	*n = Note{
		Spec: n.Spec, CreationID: n.CreationID, Created: n.Created, Expires: n.Expires, Volume: n.Volume,
		State: atoll.StateRunning, Run: began.Run, Image: began.Image, Ports: began.Ports, Started: time.Now().UTC(),
	}
}

// DueTime returns the time at which the sandbox, or what a dead program has left of its start,
// is to be removed; zero means that it is not known.
func (r *Record[O]) DueTime() time.Time {
	switch {
	case r.Note.Removing:
		return r.Created
	case !r.Note.LeaseExpires.IsZero():
		return r.Note.LeaseExpires.Add(time.Second)
	}
	return sweeper.RemovalTime(&r.Status, r.Note.Idle)
}

// RequireRunning returns the error of a call that needs a running sandbox; nil if it runs.
func RequireRunning(op string, st *atoll.Status) error {
	switch st.State {
	case atoll.StateRunning:
		return nil
	case atoll.StateFailed:
		return atoll.Errorf(op, st.ID, atoll.ErrStopped, "sandbox has failed: %s", st.Reason)
	}
	return atoll.E(op, st.ID, atoll.ErrStopped, nil)
}

// An End describes how a run ended.
type End struct {
	State  atoll.State
	Exit   *atoll.Exit // of the main process; nil if there was none
	Reason string
	Idle   bool      // it ended because it was idle
	At     time.Time // zero means now
	Image  string    // of the run, if it is known better than at its start
}

// StoppedEnd returns the end of a sandbox that was stopped by a call.
func StoppedEnd(spec *atoll.Spec, out *guest.Printed) *End {
	e := &End{State: atoll.StateStopped}
	if len(spec.Cmd) > 0 {
		exit := KilledExit()
		if out.Report.Main != nil {
			exit = *out.Report.Main
			exit.Duration = 0
		}
		e.Exit = &exit
	}
	return e
}

// KilledExit returns the exit of a killed process.
func KilledExit() atoll.Exit { return atoll.Exit{Code: 137, Signal: atoll.SIGKILL} }

// WriteEnd records the end of a run: e, unless a program is stopping the sandbox. Errors:
// ErrDoneElsewhere, and those of Update.
func (e *Engine[O]) WriteEnd(ctx context.Context, r *Record[O], end *End, out *guest.Printed) error {
	run := r.Note.Run
	return e.backend.Update(ctx, r, func(n *Note) error {
		if n.State != atoll.StateRunning || n.Run != run {
			return ErrDoneElsewhere
		}
		end := *end
		if n.Stopping {
			at, image := end.At, end.Image
			end = *StoppedEnd(&n.Spec, out)
			end.At, end.Image = at, image
		}
		if end.At.IsZero() {
			end.At = time.Now().UTC()
		}
		if end.Image != "" {
			n.Image = end.Image
		}
		n.State, n.Exit, n.Reason, n.Idle, n.Stopped = end.State, end.Exit, end.Reason, end.Idle, end.At
		n.Stopping, n.Run, n.Ports = false, "", nil
		n.Stdout, n.Stderr, n.Printed = out.Stdout.Status().Written, out.Stderr.Status().Written, out
		return nil
	})
}
