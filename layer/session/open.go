package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// LabelSession is the label of a session's sandbox that holds its key.
const LabelSession = "session"

// OpenSession implements session.Manager.
func (l *Provider) OpenSession(ctx context.Context, spec *Spec) (Opened, error) {
	if err := spec.Validate(); err != nil {
		return Opened{}, err
	}
	s := *spec
	s.Sandbox = *spec.Sandbox.Clone()
	s.Project = cmp.Or(s.Project, atoll.DefaultProject)
	s.IdleTimeout = cmp.Or(s.IdleTimeout, l.opts.IdleTimeout)
	s.MaxLifetime = cmp.Or(s.MaxLifetime, l.opts.MaxLifetime)
	l.care()
	var o Opened
	err := l.on(ctx, s.Project, s.Scope.Key(), func() (again bool, err error) {
		o, again, err = l.open(ctx, &s)
		return again, err
	})
	if l.uses.added() {
		select {
		case l.soon <- struct{}{}:
		default: // it is known already
		}
	}
	return o, err
}

// on calls do with the session's lock held, and again, after a while, as long as
// do says that another program is at work on it.
func (l *Provider) on(ctx context.Context, project, key string, do func() (again bool, err error)) error {
	unlock, err := l.locks.Lock(ctx, project+"/"+key)
	if err != nil {
		return err
	}
	defer unlock()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, maxPause) {
		again, err := do()
		if errors.Is(err, store.ErrChanged) || errors.Is(err, errRaced) {
			again, err = true, nil
		}
		if err != nil || !again {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// maxPause is how long it may take to see that another program is done.
const maxPause = 200 * time.Millisecond

// errRaced is in the chain of an error of who came second.
var errRaced = errors.New("another program was faster")

// open is one attempt; again says that another program is at work.
func (l *Provider) open(ctx context.Context, spec *Spec) (o Opened, again bool, err error) {
	x, err := l.store.FindSession(ctx, spec.Project, spec.Scope.Key())
	if atoll.KindOf(err) == atoll.ErrNotExist {
		o, err = l.openNew(ctx, spec)
		return o, false, err
	}
	if err != nil {
		return o, false, err
	}
	other, err := l.heldByOther(ctx, x)
	if err != nil {
		return o, false, err
	}
	x.Spec.Workflow = cmp.Or(x.Spec.Workflow, spec.Workflow) // who came first may not have known it
	switch {
	case other && x.State != StateOpen:
		return o, true, nil
	case x.State == StateClosing:
		return o, true, l.finish(ctx, x, false)
	case x.State == StateOpening:
		if err := l.claim(ctx, x); err != nil {
			return o, false, err
		}
	}
	sb, err := l.Provider.Get(ctx, x.Sandbox)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound && x.State == StateOpening:
		o, err = l.replace(ctx, x, x.Problem) // the id may be that of one that was ready, and goes with its program
	case atoll.KindOf(err) == atoll.ErrNotFound && other:
		err = atoll.Errorf("open session", x.Spec.Scope.Key(), atoll.ErrConflict,
			"its sandbox is that of another program, with which it ends: to share it, run atoll serve, and have both use that")
	case atoll.KindOf(err) == atoll.ErrNotFound:
		o, err = l.replace(ctx, x, "the sandbox was gone"+ends(x)+": "+another(x))
	case err == nil:
		o, err = l.revive(ctx, x, sb, &st)
	}
	return o, false, err
}

// openNew makes a session that there is not.
func (l *Provider) openNew(ctx context.Context, spec *Spec) (Opened, error) {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return Opened{}, err
	}
	now := time.Now()
	x := &Record{Spec: *spec, State: StateOpening, Holder: me, Created: now, Opened: now, Used: now}
	if err := l.choose(ctx, x); err != nil {
		return Opened{}, err
	}
	if err := l.store.InsertSession(ctx, x); err != nil {
		if atoll.KindOf(err) == atoll.ErrAlreadyExists {
			err = atoll.Errorf("open session", spec.Scope.Key(), atoll.ErrAlreadyExists, "%w", errRaced)
		}
		return Opened{}, err
	}
	l.opts.step("intent")
	return l.make(ctx, x)
}

// choose says which sandbox x is to have: one that is ready, or else one that is going
// to be made. It does not have it before that is written down.
func (l *Provider) choose(ctx context.Context, x *Record) error {
	id, err := atoll.Reserve(ctx, l.Provider, wanted(x))
	x.Sandbox = cmp.Or(id, atoll.NewID())
	return err
}

// wanted is what the sandbox of x is made from, whichever id it has.
func wanted(x *Record) *atoll.Spec {
	spec := x.Spec.Sandbox.Clone()
	spec.Project = x.Spec.Project
	if spec.Labels[LabelSession] == "" {
		if spec.Labels == nil {
			spec.Labels = map[string]string{}
		}
		spec.Labels[LabelSession] = x.Spec.Scope.Key()
	}
	spec.TTL = max(x.Spec.MaxLifetime, 0) // Never is -1
	spec.IdleStop, spec.IdleRemove = x.Spec.IdleTimeout, x.Spec.IdleTimeout != atoll.Never
	return spec
}

// ends says when sandboxes of x go by themselves.
func ends(x *Record) string {
	var when []string
	if d := x.Spec.IdleTimeout; d != atoll.Never {
		when = append(when, "when nobody uses it for "+d.String())
	}
	if d := x.Spec.MaxLifetime; d != atoll.Never {
		when = append(when, "after "+d.String())
	}
	if when == nil {
		return ""
	}
	return " (it goes " + strings.Join(when, ", and ") + ")"
}

// another says what is had in place of a sandbox.
func another(x *Record) string {
	text := "this is a new one, without the files of that"
	if box := &x.Spec.Sandbox; len(box.Mounts) > 0 || box.Workspace != (atoll.WorkspaceRef{}) {
		text += " but for what is mounted"
	}
	return text
}

// making is how the sandbox of x, which is being opened, is come by: made, unless
// there was another one before.
func making(x *Record) (how Opening, note string) {
	if x.Problem == "" {
		return OpeningMade, ""
	}
	return OpeningReplaced, x.Problem
}

// claim makes x this program's to work on.
func (l *Provider) claim(ctx context.Context, x *Record) error {
	me, err := l.store.Holder(ctx)
	if err != nil {
		return err
	}
	x.Holder = me
	return l.store.UpdateSession(ctx, x)
}

// make makes the sandbox of x, which says that it is going to be. When that fails,
// there is no session; that there was one before is remembered.
func (l *Provider) make(ctx context.Context, x *Record) (Opened, error) {
	spec := wanted(x)
	spec.ID = x.Sandbox
	sb, err := l.Provider.Create(ctx, spec)
	if atoll.KindOf(err) == atoll.ErrUnsupported {
		spec.IdleStop, spec.IdleRemove = 0, false // where the provider cannot tell, the layer does
		sb, err = l.Provider.Create(ctx, spec)
	}
	if err != nil {
		if err := l.drop(context.WithoutCancel(ctx), x, x.Problem != ""); err != nil {
			l.log.Warn("open session: undo", "session", x.Spec.Scope.Key(), "err", err) // whoever finds it finishes it
		}
		return Opened{}, err
	}
	l.opts.step("made")
	st, err := sb.Status(ctx)
	if err != nil {
		return Opened{}, err // it is there, and written down
	}
	how, note := making(x)
	return l.opened(ctx, x, &st, how, note)
}

// opened writes down that x is open, with the sandbox of st running.
func (l *Provider) opened(ctx context.Context, x *Record, st *atoll.Status, how Opening, note string) (Opened, error) {
	ctx = context.WithoutCancel(ctx)
	holder := ""
	if !st.Caps.Survives {
		var err error
		if holder, err = l.store.Holder(ctx); err != nil {
			return Opened{}, err
		}
	}
	now := time.Now()
	x.State, x.Holder, x.Opened, x.Used, x.Problem = StateOpen, holder, now, now, ""
	if err := l.store.UpdateSession(ctx, x); err != nil {
		return Opened{}, err
	}
	if !st.Caps.IdleStop && x.Spec.IdleTimeout != atoll.Never {
		l.uses.of(x.Sandbox)
	}
	return Opened{Session: session(x, st), Opening: how, Note: note}, nil
}

// revive sees to it that the sandbox, which is there, runs.
func (l *Provider) revive(ctx context.Context, x *Record, sb atoll.Sandbox, st *atoll.Status) (Opened, error) {
	how, note := OpeningFound, ""
	opening := x.State == StateOpening
	if opening {
		how, note = making(x)
	}
	var err error
	switch st.State {
	case atoll.StateRunning:
		if err := l.touch(ctx, sb, st); err != nil {
			return Opened{}, err
		}
		return l.opened(ctx, x, st, how, note)
	case atoll.StatePaused:
		err = atoll.Resume(ctx, sb)
	case atoll.StateCreating:
		err = atoll.Errorf("open session", x.Spec.Scope.Key(), atoll.ErrConflict, "its sandbox is being made again: try again in a moment")
	default:
		if !opening {
			how, note = OpeningRestarted, fmt.Sprintf("the sandbox was %s and was started again: %s", stateOf(st), remains(st.Caps))
		}
		err = sb.Start(ctx)
	}
	switch kind := atoll.KindOf(err); {
	case err == nil:
	case ctx.Err() != nil, kind == atoll.ErrUnavailable, !opening && passing(kind):
		return Opened{}, err // that says nothing about the sandbox
	case opening: // cut short, and nobody has had it
		return l.replace(ctx, x, note)
	default:
		return l.replace(ctx, x, fmt.Sprintf("the sandbox was %s and could not be started again (%v): %s", stateOf(st), err, another(x)))
	}
	again, err := sb.Status(ctx)
	if err != nil {
		return Opened{}, err
	}
	return l.opened(ctx, x, &again, how, note)
}

// remains says what of a sandbox is there again after a start.
func remains(caps atoll.Caps) string {
	switch {
	case caps.Durable != atoll.DurableNone:
		return "its files are there, what ran in it is not"
	case caps.Volumes:
		return "the files of its work directory and volumes are there; all others, and what ran in it, are not"
	}
	return "its files are gone, and what ran in it"
}

// passing reports whether what is in the way of a sandbox may go away by itself, or
// be put out of it: a disk that is full, a port that another one has. For that,
// nobody's files are thrown away.
func passing(kind atoll.Kind) bool {
	switch kind {
	case atoll.ErrExhausted, atoll.ErrConflict, atoll.ErrTimeout, atoll.ErrDenied:
		return true
	}
	return false
}

// touch counts as use of a sandbox that runs, where the provider minds that: to ask
// for its Status does not. Its error has errRaced when the sandbox has just ended.
func (l *Provider) touch(ctx context.Context, sb atoll.Sandbox, st *atoll.Status) error {
	if !st.Caps.IdleStop {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, touchTime)
	defer cancel()
	_, _ = atoll.Processes(within, sb) // one that does not answer is there, too
	now, err := sb.Status(ctx)
	if atoll.KindOf(err) == atoll.ErrNotFound || err == nil && now.State != st.State {
		return atoll.Errorf("open session", sb.ID(), atoll.ErrConflict, "%w", errRaced)
	}
	return err
}

// touchTime is how long a sandbox may take to answer whoever opens it.
const touchTime = 5 * time.Second

// stateOf is the state, and why.
func stateOf(st *atoll.Status) string {
	if st.Reason == "" {
		return string(st.State)
	}
	return fmt.Sprintf("%s (%s)", st.State, st.Reason)
}

// replace gives the session another sandbox, in the place of one of no use. note
// is what whoever opens it is told, "" if nobody has had that one.
func (l *Provider) replace(ctx context.Context, x *Record, note string) (Opened, error) {
	if err := l.remove(ctx, x.Sandbox); err != nil {
		return Opened{}, err
	}
	me, err := l.store.Holder(ctx)
	if err != nil {
		return Opened{}, err
	}
	l.uses.forget(x.Sandbox)
	x.State, x.Holder, x.Problem = StateOpening, me, note
	if err := l.choose(ctx, x); err != nil {
		return Opened{}, err
	}
	if err := l.store.UpdateSession(ctx, x); err != nil {
		return Opened{}, err
	}
	l.opts.step("replacing")
	return l.make(ctx, x)
}

// remove removes a sandbox, whether or not it is there.
func (l *Provider) remove(ctx context.Context, id string) error {
	sb, err := l.Provider.Get(ctx, id)
	if err == nil {
		err = sb.Remove(ctx, atoll.RemoveVolumes())
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}
