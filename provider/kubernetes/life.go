package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// launch makes the pod of a sandbox, and returns when its guest answers, or its main
// process has come and gone. r tells of the pod then. When it fails there is no pod.
func (p *Provider) launch(ctx context.Context, r *record) error {
	if err := p.dismiss(ctx, r); err != nil {
		return err
	}
	if err := p.volumesThere(ctx, r); err != nil {
		return err
	}
	pod, err := p.pod(r)
	if err != nil {
		return err
	}
	p.visits.Abandon(r.ID) // of its life before
	made, err := p.maker.make(ctx, r, pod)
	if err != nil {
		return err
	}
	r.pod, r.note.Pod = made, made.UID
	if err := p.await(ctx, r); err != nil {
		p.visits.Abandon(r.ID)
		return errors.Join(err, settledLast(func(ctx context.Context) error { return p.maker.rest(ctx, r.pod) }))
	}
	return nil
}

// settledLast calls do, whatever has become of the caller.
func settledLast(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	return do(ctx)
}

// dismiss ends whoever looks after the volumes of a sandbox that is stopped.
func (p *Provider) dismiss(ctx context.Context, r *record) error {
	p.visits.Abandon(caretakerOf(r.ID))
	return gone(p.api.core.Pods(r.object.Namespace).Delete(ctx, p.names.caretaker(r.ID), now("")))
}

// await returns when the guest of a pod that was made answers, or the main process has
// come and gone. Otherwise it says why not.
func (p *Provider) await(ctx context.Context, r *record) error {
	uid, id := r.pod.UID, r.ID
	patience := time.NewTimer(p.opts.Patience)
	defer patience.Stop()
	var last *hindrance
	var pulled <-chan time.Time // when it is given up to pull an image that could not be
	var again <-chan time.Time  // when it is tried again to reach a guest that could not be
	var unreached error
	seen := false
	for {
		change := p.view.change(id)
		pod := p.view.podOf(id)
		switch {
		case pod != nil && pod.UID == uid:
			seen = true
		case seen:
			return atoll.Errorf("start", id, atoll.ErrUnavailable, "its pod was deleted by somebody else")
		default:
			pod = r.pod // the view is behind
		}
		if e := endOf(pod, r.note.Spec.Resources); e != nil {
			r.pod = pod
			err := stillborn(id, e)
			if warning := p.view.lastWarning(pod); err != nil && warning != "" && e.report.Kind == "" {
				err = fmt.Errorf("%w (%s)", err, warning)
			}
			return err
		}
		if last = hindered(pod); last != nil && last.final {
			return p.hindrance(id, pod, last)
		}
		if last != nil && last.pull && pulled == nil {
			pulled = time.After(min(pullTime, p.opts.Patience))
		}
		if runs(pod) || p.view.hasStarted(pod) {
			err := p.enter(ctx, "start", id, pod)
			if err == nil {
				r.pod = pod
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if atoll.KindOf(err) == atoll.ErrDenied {
				return err
			}
			unreached, again = err, time.After(reachAgain)
		}
		select {
		case <-change:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		case <-pulled:
			if last != nil && last.pull {
				return p.hindrance(id, pod, last)
			}
		case <-patience.C:
			switch {
			case last == nil && unreached != nil:
				return atoll.Errorf("start", id, atoll.ErrUnavailable, "its guest cannot be reached: %w", unreached)
			case last == nil:
				return atoll.Errorf("start", id, atoll.ErrUnavailable, "its pod has not started within %s: %s", p.opts.Patience, p.view.lastWarning(pod))
			}
			return p.hindrance(id, pod, last)
		}
	}
}

// reachAgain is how long after a try to reach a guest there is another one.
const reachAgain = time.Second

// pullTime is how long a node may go on trying to pull an image after it could not: it
// tries three times in that time.
const pullTime = 30 * time.Second

func (p *Provider) hindrance(id string, pod *corev1.Pod, h *hindrance) error {
	text := h.text
	if warning := p.view.lastWarning(pod); warning != "" && warning != text {
		text += " (" + warning + ")"
	}
	return atoll.Errorf("start", id, h.kind, "%s", text)
}

// runs reports whether the sandbox's container does, as its node says.
func runs(pod *corev1.Pod) bool {
	c := container(pod)
	return c != nil && c.State.Running != nil
}

// stillborn is why a sandbox that has ended never began; nil for one that did, and soon
// ended.
func stillborn(id string, e *end) error {
	if e.report.Kind != "" || e.report.Message != "" {
		return atoll.Errorf("start", id, e.report.Kind, "%s", e.report.Message)
	}
	if e.exit.Reason != "" && e.report.Main == nil {
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "%s", e.exit.Reason)
	}
	return nil
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.locked(ctx, "start", func(r *record) error {
		switch {
		case r.State == atoll.StateRunning:
			return nil
		case r.State == atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted, or goes on elsewhere: remove it")
		}
		if s.p.opts.step != nil {
			if err := s.p.opts.step("pod"); err != nil {
				return err
			}
		}
		if err := s.p.fold(ctx, r); err != nil { // should this fail, it is what it was
			return err
		}
		release, err := s.p.takeStart(ctx, r)
		if errors.Is(err, errElse) {
			return nil
		}
		if err != nil {
			return err
		}
		defer release()
		if err := s.p.launch(ctx, r); err != nil {
			return err
		}
		defer s.p.sweeper.Rouse()
		starter := r.note.Starter
		err = settled(ctx, func(ctx context.Context) error {
			return s.p.change(ctx, r, func(object *corev1.ConfigMap, n *note) error {
				if n.Starter != starter { // it has taken too long, and somebody else is at it
					return startedElsewhere(r)
				}
				n.begin(r)
				delete(object.BinaryData, keyStdout)
				delete(object.BinaryData, keyStderr)
				return nil
			})
		})
		if err != nil {
			return errors.Join(err, settledLast(func(ctx context.Context) error { return s.p.maker.rest(ctx, r.pod) }))
		}
		return nil
	})
}

// takeStart writes down that this program starts the sandbox, so that no other one makes
// another pod meanwhile, nor takes the one that is made for a stray. Where another one is at
// it already, it waits: errElse says that it runs then. Who calls release has run the
// sandbox, or gives it up.
func (p *Provider) takeStart(ctx context.Context, r *record) (release func(), err error) {
	starter := atoll.NewID()[:8]
	for {
		held := time.Now()
		err := settled(ctx, func(ctx context.Context) error {
			return p.change(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
				switch {
				case n.Over:
					return atoll.E("start", r.ID, atoll.ErrNotFound, nil)
				case n.State == atoll.StateRunning || n.starting(held):
					return errElse
				}
				n.Starter, n.Until = starter, held.Add(making)
				return nil
			})
		})
		if err == nil {
			break
		}
		if !errors.Is(err, errElse) {
			return nil, err
		}
		if err := p.othersStart(ctx, r); err != nil {
			return nil, err
		}
	}
	mine := func(n *note) error {
		if n.Starter != starter {
			return errElse
		}
		return nil
	}
	stop := p.keepOn(ctx, r, mine)
	return func() {
		stop()
		err := settledLast(func(ctx context.Context) error {
			return p.change(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
				if err := mine(n); err != nil {
					return err
				}
				n.Starter, n.Until = "", time.Time{}
				return nil
			})
		})
		if k := atoll.KindOf(err); err != nil && !errors.Is(err, errElse) && k != atoll.ErrNotFound && !apierrors.IsNotFound(err) {
			p.opts.Log.Warn("start: that it is given up", "sandbox", r.ID, "err", err)
		}
	}, nil
}

// othersStart waits while another program starts the sandbox. errElse says that it runs;
// nil, that it is anybody's to start.
func (p *Provider) othersStart(ctx context.Context, r *record) error {
	again, err := p.fresh(ctx, "start", r.ID)
	for err == nil && again.note.starting(time.Now()) {
		wait, cancel := context.WithDeadline(ctx, again.note.Until)
		_ = p.view.wait(wait, r.ID, func() bool {
			object := p.view.recordOf(r.ID)
			return object == nil || object.ResourceVersion != again.object.ResourceVersion
		})
		cancel()
		again, err = p.fresh(ctx, "start", r.ID)
	}
	if err != nil {
		return err
	}
	if again.State == atoll.StateRunning {
		return errElse
	}
	*r = *again
	return p.fold(ctx, r)
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	return s.locked(ctx, "stop", func(r *record) error {
		if r.State != atoll.StateRunning {
			return nil
		}
		defer s.p.sweeper.Rouse()
		e, err := s.p.quiet(ctx, r, grace)
		if err != nil {
			return err
		}
		return settled(ctx, func(ctx context.Context) error {
			out := s.p.printed(ctx, r)
			err := s.p.change(ctx, r, func(object *corev1.ConfigMap, n *note) error {
				if n.Pod != r.note.Pod {
					if n.State == atoll.StateRunning || !n.Started.Equal(r.note.Started) { // it lives again already
						return errElse
					}
					n.State, n.Reason = atoll.StateStopped, "" // somebody has seen it end, and has not seen why
					return nil
				}
				n.rest(r, e, out)
				n.State, n.Reason = atoll.StateStopped, ""
				return store(out, object)
			})
			if errors.Is(err, errElse) {
				return nil
			}
			if err != nil {
				return err
			}
			s.p.visits.Abandon(s.id)
			return s.p.maker.rest(ctx, r.pod)
		})
	})
}

// quiet ends all processes of a sandbox, which have that long to end of their own, and
// returns how the main one has ended, as far as is known.
func (p *Provider) quiet(ctx context.Context, r *record, grace time.Duration) (*end, error) {
	e := killed()
	reach, cancel := context.WithTimeout(ctx, reachTime)
	inside, err := p.inside(reach, "stop", r.ID)
	cancel()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, grace+reachTime)
		defer cancel()
		err = inside.Stop(ctx, grace)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil || atoll.KindOf(err) == atoll.ErrStopped {
		return e, nil
	}
	// It does not answer: its node ends it, or has lost it.
	seconds := int64(grace.Seconds()) + 1
	if err := gone(p.api.core.Pods(r.pod.Namespace).Delete(ctx, r.pod.Name, within(r.pod.UID, seconds))); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, grace+2*reachTime)
	defer cancel()
	err = p.view.wait(wait, r.ID, func() bool {
		pod := p.view.podOf(r.ID)
		return pod == nil || pod.UID != r.pod.UID || ended(pod)
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		p.opts.Log.Warn("stop: its node does not say that its pod has ended", "sandbox", r.ID, "node", r.pod.Spec.NodeName)
	}
	return e, nil
}

// killed is the end of a sandbox whose own nobody has seen.
func killed() *end {
	return &end{exit: atoll.Exit{Code: 137, Signal: atoll.SIGKILL}, at: time.Now()}
}

// reachTime is how long it may take to find out whether a guest answers.
const reachTime = 5 * time.Second

// rest notes how a life has ended.
func (n *note) rest(r *record, e *end, out *guest.Printed) {
	n.State, n.Reason, n.Stopped, n.Idle = r.State, r.Reason, e.at, r.note.Idle
	n.Image, n.Pod = r.Image, ""
	n.Exit = r.Exit
	if len(n.Spec.Cmd) > 0 && n.Exit == nil {
		exit := e.exit
		if out.Report.Main != nil {
			exit = *out.Report.Main
			exit.Duration = 0
		}
		n.Exit = &exit
	}
	n.Stdout, n.Stderr = out.Stdout.Status().Written, out.Stderr.Status().Written
}

// fold writes down how a life has ended that ended of its own, with what is in the pod's
// log, and drops the pod: nothing runs in it, and its node forgets it. That of one that has
// failed stays as long as the cluster has it, for who wants to know more.
func (p *Provider) fold(ctx context.Context, r *record) error {
	if r.note.State != atoll.StateRunning {
		return nil
	}
	e, out := killed(), guest.NothingPrinted()
	if r.pod != nil && r.pod.UID == r.note.Pod {
		if found := endOf(r.pod, r.note.Spec.Resources); found != nil {
			e = found
		}
		out = p.printed(ctx, r)
	}
	err := p.change(ctx, r, func(object *corev1.ConfigMap, n *note) error {
		if n.State != atoll.StateRunning || n.Pod != r.note.Pod {
			return errElse
		}
		n.rest(r, e, out)
		return store(out, object)
	})
	if errors.Is(err, errElse) {
		return nil
	}
	if err != nil || r.pod == nil || r.State == atoll.StateFailed {
		return err
	}
	return p.maker.rest(ctx, r.pod)
}

// errElse says that somebody else has done it.
var errElse = errors.New("it is done")

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.p.view.open(ctx, "remove"); err != nil {
		return err
	}
	release, err := s.p.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	return guestproc.Detached(ctx, &s.p.work, lastTime, func(ctx context.Context) error {
		defer release()
		return s.p.failed(ctx, "remove", s.id, s.p.remove(ctx, s.id, atoll.RemoveOpts(opts...)))
	})
}

// remove removes a sandbox whose lock the caller holds.
func (p *Provider) remove(ctx context.Context, id string, opts atoll.RemoveOptions) error {
	r, err := p.look(ctx, "remove", id)
	switch {
	case err == nil:
		if r.State == atoll.StateRunning {
			p.hush(ctx, id)
		}
		if err := p.drop(ctx, r); err != nil {
			return err
		}
	case atoll.KindOf(err) != atoll.ErrNotFound:
		return err
	}
	if !opts.Volumes {
		return nil
	}
	return p.dropData(ctx, id, r)
}

// hush ends the processes of a sandbox that goes, if it can be reached: else its node
// ends them, a moment later.
func (p *Provider) hush(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, hushTime)
	defer cancel()
	if inside, err := p.inside(ctx, "remove", id); err == nil {
		_ = inside.Stop(ctx, 0)
	}
}

const hushTime = 2 * time.Second

// drop deletes all of a sandbox but its volumes. The record goes last: as long as there
// is anything, the sandbox is in List, and can be removed.
func (p *Provider) drop(ctx context.Context, r *record) error {
	p.visits.Abandon(r.ID)
	if err := p.dismiss(ctx, r); err != nil {
		return err
	}
	if err := p.maker.drop(ctx, r); err != nil {
		return err
	}
	ns, name := r.object.Namespace, p.names.sandbox(r.ID)
	if err := gone(p.api.net.NetworkPolicies(ns).Delete(ctx, name, now(""))); err != nil {
		return err
	}
	if spec := &r.note.Spec; spec.Name != "" {
		if err := p.unname(ctx, r); err != nil {
			return err
		}
	}
	if err := gone(p.api.core.ConfigMaps(ns).Delete(ctx, r.object.Name, now(r.object.UID))); err != nil {
		return err
	}
	return p.view.unseen(ctx, r.object)
}

// unname gives up a sandbox's name, if it has it.
func (p *Provider) unname(ctx context.Context, r *record) error {
	maps := p.api.core.ConfigMaps(r.object.Namespace)
	held, err := maps.Get(ctx, p.names.named(r.note.Spec.Project, r.note.Spec.Name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && held.Labels[labelSession] != r.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return gone(maps.Delete(ctx, held.Name, now(held.UID)))
}
