package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// LabelSession is the label of a session's sandbox whose value is the session's
// key.
const LabelSession = "session"

// OpenSession implements session.Manager.
func (l *Provider) OpenSession(ctx context.Context, spec *Spec) (OpenResult, error) {
	if err := spec.Validate(); err != nil {
		return OpenResult{}, err
	}
	s := *spec
	s.Sandbox = *spec.Sandbox.Clone()
	s.Project = cmp.Or(s.Project, atoll.DefaultProject)
	s.IdleTimeout = cmp.Or(s.IdleTimeout, l.opts.IdleTimeout)
	s.MaxLifetime = cmp.Or(s.MaxLifetime, l.opts.MaxLifetime)
	l.startMaintenance()
	var o OpenResult
	err := l.withLock(ctx, s.Project, s.Scope.Key(), func() (again bool, err error) {
		o, again, err = l.tryOpen(ctx, &s)
		return again, err
	})
	if l.tracker.takeAdded() {
		select {
		case l.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
	return o, err
}

// withLock calls do while it holds the session's lock. It repeats the call, with a
// growing pause, as long as do returns again: another program works on the session.
func (l *Provider) withLock(ctx context.Context, project, key string, do func() (again bool, err error)) error {
	unlock, err := l.locks.Lock(ctx, project+"/"+key)
	if err != nil {
		return err
	}
	defer unlock()
	return racePolicy.Do(ctx, func() error {
		again, err := do()
		if err == nil && again {
			return errRaced
		}
		return err
	})
}

// racePolicy retries while other programs are faster.
var racePolicy = retry.Policy{
	First: 5 * time.Millisecond, Max: 200 * time.Millisecond,
	If: func(err error) bool { return errors.Is(err, store.ErrChanged) || errors.Is(err, errRaced) },
}

// errRaced is wrapped in an error if another program was faster.
var errRaced = errors.New("another program was faster")

// tryOpen is one attempt of OpenSession. again reports that another program works
// on the session.
func (l *Provider) tryOpen(ctx context.Context, spec *Spec) (o OpenResult, again bool, err error) {
	rec, err := l.store.FindSession(ctx, spec.Project, spec.Scope.Key())
	if atoll.KindOf(err) == atoll.ErrNotExist {
		o, err = l.openNew(ctx, spec)
		return o, false, err
	}
	if err != nil {
		return o, false, err
	}
	other, err := l.heldByOther(ctx, rec)
	if err != nil {
		return o, false, err
	}
	rec.Spec.Workflow = cmp.Or(rec.Spec.Workflow, spec.Workflow) // the first caller may not have set it
	switch {
	case other && rec.State != StateOpen:
		return o, true, nil
	case rec.State == StateClosing:
		return o, true, l.finishClose(ctx, rec, false)
	case rec.State == StateOpening:
		if err := l.claimRecord(ctx, rec); err != nil {
			return o, false, err
		}
	}
	sb, err := l.Provider.Get(ctx, rec.Sandbox)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound && rec.State == StateOpening:
		o, err = l.replaceSandbox(ctx, rec, rec.Problem) // the sandbox may have been another program's pool stock, removed with that program
	case atoll.KindOf(err) == atoll.ErrNotFound && other:
		err = atoll.Errorf("open session", rec.Spec.Scope.Key(), atoll.ErrConflict,
			"the sandbox of the session belongs to another program and ends with it; to share it, run atoll serve and connect both programs to it")
	case atoll.KindOf(err) == atoll.ErrNotFound:
		o, err = l.replaceSandbox(ctx, rec, "the sandbox was gone"+describeExpiry(rec)+": "+describeReplacement(rec))
	case err == nil:
		o, err = l.ensureRunning(ctx, rec, sb, &st)
	}
	return o, false, err
}

// openNew creates a session and its sandbox.
func (l *Provider) openNew(ctx context.Context, spec *Spec) (OpenResult, error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return OpenResult{}, err
	}
	now := time.Now()
	rec := &Record{Spec: *spec, State: StateOpening, Holder: me, Created: now, Opened: now, Used: now}
	if err := l.chooseSandbox(ctx, rec); err != nil {
		return OpenResult{}, err
	}
	if err := l.store.InsertSession(ctx, rec); err != nil {
		if atoll.KindOf(err) == atoll.ErrAlreadyExists {
			err = atoll.Errorf("open session", spec.Scope.Key(), atoll.ErrAlreadyExists, "%w", errRaced)
		}
		return OpenResult{}, err
	}
	l.opts.onStep("intent")
	return l.createSandbox(ctx, rec)
}

// chooseSandbox sets the sandbox ID of rec: that of a reserved one, or else a new ID.
// The caller must record rec before it creates the sandbox.
func (l *Provider) chooseSandbox(ctx context.Context, rec *Record) error {
	id, err := atoll.Reserve(ctx, l.Provider, sandboxSpec(rec))
	rec.Sandbox = cmp.Or(id, atoll.NewID())
	return err
}

// sandboxSpec returns the spec of rec's sandbox, without its ID.
func sandboxSpec(rec *Record) *atoll.Spec {
	spec := rec.Spec.Sandbox.Clone()
	spec.Project = rec.Spec.Project
	if spec.Labels[LabelSession] == "" {
		if spec.Labels == nil {
			spec.Labels = map[string]string{}
		}
		spec.Labels[LabelSession] = rec.Spec.Scope.Key()
	}
	spec.TTL = max(rec.Spec.MaxLifetime, 0) // Never is -1
	spec.IdleStop, spec.IdleRemove = rec.Spec.IdleTimeout, rec.Spec.IdleTimeout != atoll.Never
	return spec
}

// describeExpiry returns when the sandbox of rec ends by itself, in parentheses; ""
// if it does not.
func describeExpiry(rec *Record) string {
	var when []string
	if d := rec.Spec.IdleTimeout; d != atoll.Never {
		when = append(when, "after "+d.String()+" without use")
	}
	if d := rec.Spec.MaxLifetime; d != atoll.Never {
		when = append(when, "after "+d.String())
	}
	if when == nil {
		return ""
	}
	return " (it ends " + strings.Join(when, ", or ") + ")"
}

// describeReplacement returns what a new sandbox lacks.
func describeReplacement(rec *Record) string {
	text := "this is a new one, without the files of the old one"
	if box := &rec.Spec.Sandbox; len(box.Mounts) > 0 || box.Workspace != (atoll.WorkspaceRef{}) {
		text += ", except in mounts"
	}
	return text
}

// describeCreation returns how rec, which is being opened, gets its sandbox, and the
// note for the caller.
func describeCreation(rec *Record) (opening Opening, note string) {
	if rec.Problem == "" {
		return OpeningMade, ""
	}
	return OpeningReplaced, rec.Problem
}

// claimRecord makes this program the holder of rec.
func (l *Provider) claimRecord(ctx context.Context, rec *Record) error {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return err
	}
	rec.Holder = me
	return l.store.UpdateSession(ctx, rec)
}

// createSandbox creates the sandbox of rec, whose record exists. If that fails, it
// deletes the record, or marks it as gone if the session had a sandbox before.
func (l *Provider) createSandbox(ctx context.Context, rec *Record) (OpenResult, error) {
	spec := sandboxSpec(rec)
	spec.ID = rec.Sandbox
	sb, err := l.Provider.Create(ctx, spec)
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		spec.IdleStop, spec.IdleRemove = 0, false // the layer enforces the idle timeout instead
		sb, err = l.Provider.Create(ctx, spec)
	}
	if err != nil {
		if err := l.dropRecord(context.WithoutCancel(ctx), rec, rec.Problem != ""); err != nil {
			l.log.Warn("open session: cannot delete the record of a failed creation", "session", rec.Spec.Scope.Key(), "err", err) // the next open or check does
		}
		return OpenResult{}, err
	}
	l.opts.onStep("made")
	st, err := sb.Status(ctx)
	if err != nil {
		return OpenResult{}, err // the sandbox exists, and its record: the next open finds it
	}
	opening, note := describeCreation(rec)
	return l.recordOpen(ctx, rec, &st, opening, note)
}

// recordOpen records that rec is open. st is the status of its running sandbox.
func (l *Provider) recordOpen(ctx context.Context, rec *Record, st *atoll.Status, opening Opening, note string) (OpenResult, error) {
	ctx = context.WithoutCancel(ctx)
	holder := ""
	if !st.Caps.Survives {
		var err error
		if holder, err = l.store.Holder(ctx); err != nil {
			return OpenResult{}, err
		}
	}
	now := time.Now()
	rec.State, rec.Holder, rec.Opened, rec.Used, rec.Problem = StateOpen, holder, now, now, ""
	if err := l.store.UpdateSession(ctx, rec); err != nil {
		return OpenResult{}, err
	}
	if !st.Caps.IdleStop && rec.Spec.IdleTimeout != atoll.Never {
		l.tracker.forSandbox(rec.Sandbox)
	}
	return OpenResult{Session: describeSession(rec, st), Opening: opening, Note: note}, nil
}

// ensureRunning opens a session whose sandbox exists: it resumes, starts or, if
// that fails, replaces it.
func (l *Provider) ensureRunning(ctx context.Context, rec *Record, sb atoll.Sandbox, st *atoll.Status) (OpenResult, error) {
	opening, note := OpeningFound, ""
	wasOpening := rec.State == StateOpening
	if wasOpening {
		opening, note = describeCreation(rec)
	}
	var err error
	switch st.State {
	case atoll.StateRunning:
		if err := l.touchSandbox(ctx, sb, st); err != nil {
			return OpenResult{}, err
		}
		return l.recordOpen(ctx, rec, st, opening, note)
	case atoll.StatePaused:
		err = atoll.Resume(ctx, sb)
	case atoll.StateCreating:
		err = atoll.Errorf("open session", rec.Spec.Scope.Key(), atoll.ErrConflict, "the sandbox of the session is being rebuilt; try again in a moment")
	default:
		if !wasOpening {
			opening, note = OpeningRestarted, fmt.Sprintf("the sandbox was %s and was started again: %s", describeState(st), describeRestart(st.Caps))
		}
		err = sb.Start(ctx)
	}
	switch kind := atoll.KindOf(err); {
	case err == nil:
	case ctx.Err() != nil, kind == atoll.ErrUnavailable, !wasOpening && isTransient(kind):
		return OpenResult{}, err // the sandbox may be intact
	case wasOpening: // an interrupted creation, which no caller has used
		return l.replaceSandbox(ctx, rec, note)
	default:
		return l.replaceSandbox(ctx, rec, fmt.Sprintf("the sandbox was %s and could not be started again (%v): %s", describeState(st), err, describeReplacement(rec)))
	}
	again, err := sb.Status(ctx)
	if err != nil {
		return OpenResult{}, err
	}
	return l.recordOpen(ctx, rec, &again, opening, note)
}

// describeRestart returns what a restarted sandbox still has.
func describeRestart(caps atoll.Caps) string {
	switch {
	case caps.Durable != atoll.DurableNone:
		return "its files are intact, its processes are gone"
	case caps.Volumes:
		return "the files in its work directory and volumes are intact; all other files and its processes are gone"
	}
	return "its files and processes are gone"
}

// isTransient reports whether an error may go away without a new sandbox, such as
// that of a full disk or a port in use. The layer does not discard files for such
// an error.
func isTransient(kind atoll.Kind) bool {
	switch kind {
	case atoll.ErrExhausted, atoll.ErrConflict, atoll.ErrTimeout, atoll.ErrDenied:
		return true
	}
	return false
}

// touchSandbox counts as use of a running sandbox if the provider tracks use: a
// call of Status does not. If the sandbox has just ended, the error wraps errRaced.
func (l *Provider) touchSandbox(ctx context.Context, sb atoll.Sandbox, st *atoll.Status) error {
	if !st.Caps.IdleStop {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, touchTimeout)
	defer cancel()
	_, _ = atoll.Processes(within, sb) // an error does not mean that the sandbox has ended
	now, err := sb.Status(ctx)
	if atoll.KindOf(err) == atoll.ErrNotFound || err == nil && now.State != st.State {
		return atoll.Errorf("open session", sb.ID(), atoll.ErrConflict, "%w", errRaced)
	}
	return err
}

// touchTimeout limits the wait for an answer of the sandbox.
const touchTimeout = 5 * time.Second

// describeState returns the state, with its reason.
func describeState(st *atoll.Status) string {
	if st.Reason == "" {
		return string(st.State)
	}
	return fmt.Sprintf("%s (%s)", st.State, st.Reason)
}

// replaceSandbox removes the session's sandbox and creates another one. note tells
// the caller why; "" if no caller has used the old one.
func (l *Provider) replaceSandbox(ctx context.Context, rec *Record, note string) (OpenResult, error) {
	if err := l.removeSandbox(ctx, rec.Sandbox); err != nil {
		return OpenResult{}, err
	}
	me, err := l.store.Holder(ctx)
	if err != nil {
		return OpenResult{}, err
	}
	l.tracker.dropSandbox(rec.Sandbox)
	rec.State, rec.Holder, rec.Problem = StateOpening, me, note
	if err := l.chooseSandbox(ctx, rec); err != nil {
		return OpenResult{}, err
	}
	if err := l.store.UpdateSession(ctx, rec); err != nil {
		return OpenResult{}, err
	}
	l.opts.onStep("replacing")
	return l.createSandbox(ctx, rec)
}

// removeSandbox removes a sandbox and its volumes. It returns nil if the sandbox
// does not exist.
func (l *Provider) removeSandbox(ctx context.Context, id string) error {
	sb, err := l.Provider.Get(ctx, id)
	if err == nil {
		err = sb.Remove(ctx, atoll.RemoveVolumes())
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}
