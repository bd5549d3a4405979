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

// launchSandbox creates the pod of a sandbox, and returns when its guest answers or its main
// process has run and ended. It sets r.pod. If it fails, no pod is left.
func (p *Provider) launchSandbox(ctx context.Context, r *record) error {
	if err := p.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	if err := p.checkDataVolume(ctx, r); err != nil {
		return err
	}
	pod, err := p.buildPod(r)
	if err != nil {
		return err
	}
	p.visits.Abandon(r.ID) // the connection to the last run
	made, err := p.maker.createPod(ctx, r, pod)
	if err != nil {
		return err
	}
	r.pod, r.note.Pod = made, made.UID
	if err := p.awaitGuest(ctx, r); err != nil {
		p.visits.Abandon(r.ID)
		return errors.Join(err, runCleanup(func(ctx context.Context) error { return p.maker.retirePod(ctx, r.pod) }))
	}
	return nil
}

// runCleanup calls do with a context of its own, even if the caller has gone.
func runCleanup(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return do(ctx)
}

// dismissCaretaker ends the caretaker of a stopped sandbox's volumes.
func (p *Provider) dismissCaretaker(ctx context.Context, r *record) error {
	p.visits.Abandon(caretakerKey(r.ID))
	return ignoreGone(p.api.core.Pods(r.object.Namespace).Delete(ctx, p.names.caretakerName(r.ID), deleteNow("")))
}

// awaitGuest returns nil when the guest of a new pod answers, or when the main process has run
// and ended. Otherwise it returns the reason.
func (p *Provider) awaitGuest(ctx context.Context, r *record) error {
	uid, id := r.pod.UID, r.ID
	patience := time.NewTimer(p.opts.Patience)
	defer patience.Stop()
	var last *startBlocker
	var pulled <-chan time.Time // fires when the node has retried a failed image pull for long enough
	var again <-chan time.Time  // fires when it is time to try again to reach the guest
	var unreached error
	seen := false
	for {
		change := p.view.nextChange(id)
		pod := p.view.podOf(id)
		switch {
		case pod != nil && pod.UID == uid:
			seen = true
		case seen:
			return atoll.Errorf("start", id, atoll.ErrUnavailable, "its pod was deleted by somebody else")
		default:
			pod = r.pod // the view is behind
		}
		if e := endOfPod(pod, r.note.Spec.Resources); e != nil {
			r.pod = pod
			err := startFailure(id, e)
			if warning := p.view.lastWarning(pod); err != nil && warning != "" && e.report.Kind == "" {
				err = fmt.Errorf("%w (%s)", err, warning)
			}
			return err
		}
		if last = findBlocker(pod); last != nil && last.final {
			return p.blockerError(id, pod, last)
		}
		if last != nil && last.pull && pulled == nil {
			pulled = time.After(min(pullTimeout, p.opts.Patience))
		}
		if isRunning(pod) || p.view.hasStarted(pod) {
			err := p.reachStartedGuest(ctx, "start", id, pod)
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
			unreached, again = err, time.After(reachInterval)
		}
		select {
		case <-change:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		case <-pulled:
			if last != nil && last.pull {
				return p.blockerError(id, pod, last)
			}
		case <-patience.C:
			switch {
			case last == nil && unreached != nil:
				return atoll.Errorf("start", id, atoll.ErrUnavailable, "cannot reach its guest: %w", unreached)
			case last == nil:
				return atoll.Errorf("start", id, atoll.ErrUnavailable, "its pod has not started within %s: %s", p.opts.Patience, p.view.lastWarning(pod))
			}
			return p.blockerError(id, pod, last)
		}
	}
}

// reachInterval is the pause between two attempts to reach a guest.
const reachInterval = time.Second

// pullTimeout bounds how long a node may retry a failed image pull: it tries three times in
// that time.
const pullTimeout = 30 * time.Second

func (p *Provider) blockerError(id string, pod *corev1.Pod, h *startBlocker) error {
	text := h.text
	if warning := p.view.lastWarning(pod); warning != "" && warning != text {
		text += " (" + warning + ")"
	}
	return atoll.Errorf("start", id, h.kind, "%s", text)
}

// isRunning reports whether the node says that the sandbox's container runs.
func isRunning(pod *corev1.Pod) bool {
	c := mainStatus(pod)
	return c != nil && c.State.Running != nil
}

// startFailure returns why an ended sandbox never began to run; nil if it ran, even if only for
// a moment.
func startFailure(id string, e *sandboxEnd) error {
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
	return s.withLockedRecord(ctx, "start", func(r *record) error {
		switch {
		case r.State == atoll.StateRunning:
			return nil
		case r.State == atoll.StateCreating:
			return atoll.Errorf("start", s.id, atoll.ErrConflict, "its creation was interrupted, or is still in progress: remove it")
		}
		if s.p.opts.step != nil {
			if err := s.p.opts.step("pod"); err != nil {
				return err
			}
		}
		if err := s.p.recordEnd(ctx, r); err != nil { // if a later step fails, the sandbox is stopped as before
			return err
		}
		release, err := s.p.claimStart(ctx, r)
		if errors.Is(err, errDoneElsewhere) {
			return nil
		}
		if err != nil {
			return err
		}
		defer release()
		if err := s.p.launchSandbox(ctx, r); err != nil {
			return err
		}
		defer s.p.sweeper.Rouse()
		starter := r.note.Starter
		err = runToEnd(ctx, func(ctx context.Context) error {
			return s.p.updateRecord(ctx, r, func(object *corev1.ConfigMap, n *note) error {
				if n.Starter != starter { // the lease has expired, and another program starts it
					return startConflict(r)
				}
				n.markRunning(r)
				delete(object.BinaryData, keyStdout)
				delete(object.BinaryData, keyStderr)
				return nil
			})
		})
		if err != nil {
			return errors.Join(err, runCleanup(func(ctx context.Context) error { return s.p.maker.retirePod(ctx, r.pod) }))
		}
		return nil
	})
}

// claimStart records that this program starts the sandbox: no other program creates a pod
// meanwhile, or takes the new pod for a stray. If another program is starting it, claimStart
// waits, and returns errDoneElsewhere if the sandbox runs then. The caller calls release when
// it has started the sandbox or given up.
func (p *Provider) claimStart(ctx context.Context, r *record) (release func(), err error) {
	starter := atoll.NewID()[:8]
	for {
		held := time.Now()
		err := runToEnd(ctx, func(ctx context.Context) error {
			return p.updateRecord(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
				switch {
				case n.Removing:
					return atoll.E("start", r.ID, atoll.ErrNotFound, nil)
				case n.State == atoll.StateRunning || n.isStarting(held):
					return errDoneElsewhere
				}
				n.Starter, n.LeaseExpires = starter, held.Add(leaseTTL)
				return nil
			})
		})
		if err == nil {
			break
		}
		if !errors.Is(err, errDoneElsewhere) {
			return nil, err
		}
		if err := p.awaitOtherStart(ctx, r); err != nil {
			return nil, err
		}
	}
	mine := func(n *note) error {
		if n.Starter != starter {
			return errDoneElsewhere
		}
		return nil
	}
	stop := p.keepLease(ctx, r, mine)
	return func() {
		stop()
		err := runCleanup(func(ctx context.Context) error {
			return p.updateRecord(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
				if err := mine(n); err != nil {
					return err
				}
				n.Starter, n.LeaseExpires = "", time.Time{}
				return nil
			})
		})
		if k := atoll.KindOf(err); err != nil && !errors.Is(err, errDoneElsewhere) && k != atoll.ErrNotFound && !apierrors.IsNotFound(err) {
			p.opts.Log.Warn("start: cannot release the lease", "sandbox", r.ID, "err", err)
		}
	}, nil
}

// awaitOtherStart waits while another program starts the sandbox. It returns errDoneElsewhere
// if the sandbox runs then, and nil if any program may start it.
func (p *Provider) awaitOtherStart(ctx context.Context, r *record) error {
	again, err := p.findLatestRecord(ctx, "start", r.ID)
	for err == nil && again.note.isStarting(time.Now()) {
		wait, cancel := context.WithDeadline(ctx, again.note.LeaseExpires)
		_ = p.view.waitUntil(wait, r.ID, func() bool {
			object := p.view.recordOf(r.ID)
			return object == nil || object.ResourceVersion != again.object.ResourceVersion
		})
		cancel()
		again, err = p.findLatestRecord(ctx, "start", r.ID)
	}
	if err != nil {
		return err
	}
	if again.State == atoll.StateRunning {
		return errDoneElsewhere
	}
	*r = *again
	return p.recordEnd(ctx, r)
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	return s.withLockedRecord(ctx, "stop", func(r *record) error {
		if r.State != atoll.StateRunning {
			return nil
		}
		defer s.p.sweeper.Rouse()
		e, err := s.p.stopProcesses(ctx, r, grace)
		if err != nil {
			return err
		}
		return runToEnd(ctx, func(ctx context.Context) error {
			out := s.p.readOutput(ctx, r)
			err := s.p.updateRecord(ctx, r, func(object *corev1.ConfigMap, n *note) error {
				if n.Pod != r.note.Pod {
					if n.State == atoll.StateRunning || !n.Started.Equal(r.note.Started) { // it has been started again
						return errDoneElsewhere
					}
					n.State, n.Reason = atoll.StateStopped, "" // another program has recorded its end, without this reason
					return nil
				}
				n.setEnd(r, e, out)
				n.State, n.Reason = atoll.StateStopped, ""
				return storeOutput(out, object)
			})
			if errors.Is(err, errDoneElsewhere) {
				return nil
			}
			if err != nil {
				return err
			}
			s.p.visits.Abandon(s.id)
			return s.p.maker.retirePod(ctx, r.pod)
		})
	})
}

// stopProcesses ends all processes of a sandbox, after a grace period in which they may end by
// themselves. It returns how the main process ended, as far as is known.
func (p *Provider) stopProcesses(ctx context.Context, r *record, grace time.Duration) (*sandboxEnd, error) {
	e := killedEnd()
	reach, cancel := context.WithTimeout(ctx, reachTimeout)
	inside, err := p.reachGuest(reach, "stop", r.ID)
	cancel()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, grace+reachTimeout)
		defer cancel()
		err = inside.Stop(ctx, grace)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil || atoll.KindOf(err) == atoll.ErrStopped {
		return e, nil
	}
	// The guest does not answer: the node ends the pod, or is lost.
	seconds := int64(grace.Seconds()) + 1
	if err := ignoreGone(p.api.core.Pods(r.pod.Namespace).Delete(ctx, r.pod.Name, deleteWithin(r.pod.UID, seconds))); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, grace+2*reachTimeout)
	defer cancel()
	err = p.view.waitUntil(wait, r.ID, func() bool {
		pod := p.view.podOf(r.ID)
		return pod == nil || pod.UID != r.pod.UID || podEnded(pod)
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		p.opts.Log.Warn("stop: the node does not report the end of the pod", "sandbox", r.ID, "node", r.pod.Spec.NodeName)
	}
	return e, nil
}

// killedEnd returns the end of a sandbox of which no other end is known.
func killedEnd() *sandboxEnd {
	return &sandboxEnd{exit: atoll.Exit{Code: 137, Signal: atoll.SIGKILL}, at: time.Now()}
}

// reachTimeout bounds the check whether a guest answers.
const reachTimeout = 5 * time.Second

// setEnd stores the end of a run in the note.
func (n *note) setEnd(r *record, e *sandboxEnd, out *guest.Printed) {
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

// recordEnd records the end of a run that ended by itself, with the pod's log, and deletes the
// pod: nothing runs in it, and its node forgets it. It leaves the pod of a failed sandbox to
// the cluster, for users who want to look into it.
func (p *Provider) recordEnd(ctx context.Context, r *record) error {
	if r.note.State != atoll.StateRunning {
		return nil
	}
	e, out := killedEnd(), guest.NothingPrinted()
	if r.pod != nil && r.pod.UID == r.note.Pod {
		if found := endOfPod(r.pod, r.note.Spec.Resources); found != nil {
			e = found
		}
		out = p.readOutput(ctx, r)
	}
	err := p.updateRecord(ctx, r, func(object *corev1.ConfigMap, n *note) error {
		if n.State != atoll.StateRunning || n.Pod != r.note.Pod {
			return errDoneElsewhere
		}
		n.setEnd(r, e, out)
		return storeOutput(out, object)
	})
	if errors.Is(err, errDoneElsewhere) {
		return nil
	}
	if err != nil || r.pod == nil || r.State == atoll.StateFailed {
		return err
	}
	return p.maker.retirePod(ctx, r.pod)
}

// errDoneElsewhere reports that another program has already done it.
var errDoneElsewhere = errors.New("another program has done it")

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.p.view.open(ctx, "remove"); err != nil {
		return err
	}
	release, err := s.p.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	return guestproc.Detached(ctx, &s.p.work, cleanupTimeout, func(ctx context.Context) error {
		defer release()
		return s.p.wrapError(ctx, "remove", s.id, s.p.removeSandbox(ctx, s.id, atoll.RemoveOpts(opts...)))
	})
}

// removeSandbox removes a sandbox whose lock the caller holds.
func (p *Provider) removeSandbox(ctx context.Context, id string, opts atoll.RemoveOptions) error {
	r, err := p.findRecord(ctx, "remove", id)
	switch {
	case err == nil:
		if r.State == atoll.StateRunning {
			p.killProcesses(ctx, id)
		}
		if err := p.dropSandbox(ctx, r); err != nil {
			return err
		}
	case atoll.KindOf(err) != atoll.ErrNotFound:
		return err
	}
	if !opts.Volumes {
		return nil
	}
	return p.dropDataVolume(ctx, id, r)
}

// killProcesses ends the processes of a sandbox that is being removed, if its guest answers;
// otherwise its node ends them a moment later.
func (p *Provider) killProcesses(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if inside, err := p.reachGuest(ctx, "remove", id); err == nil {
		_ = inside.Stop(ctx, 0)
	}
}

const killTimeout = 2 * time.Second

// dropSandbox deletes all objects of a sandbox but its volumes. It deletes the record last: as
// long as anything is left, List has the sandbox, and Remove can remove it.
func (p *Provider) dropSandbox(ctx context.Context, r *record) error {
	p.visits.Abandon(r.ID)
	if err := p.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	if err := p.maker.deletePods(ctx, r); err != nil {
		return err
	}
	ns, name := r.object.Namespace, p.names.sandboxName(r.ID)
	if err := ignoreGone(p.api.net.NetworkPolicies(ns).Delete(ctx, name, deleteNow(""))); err != nil {
		return err
	}
	if spec := &r.note.Spec; spec.Name != "" {
		if err := p.releaseName(ctx, r); err != nil {
			return err
		}
	}
	if err := ignoreGone(p.api.core.ConfigMaps(ns).Delete(ctx, r.object.Name, deleteNow(r.object.UID))); err != nil {
		return err
	}
	return p.view.awaitRecordGone(ctx, r.object)
}

// releaseName deletes the claim to a sandbox's name, if the sandbox has it.
func (p *Provider) releaseName(ctx context.Context, r *record) error {
	maps := p.api.core.ConfigMaps(r.object.Namespace)
	held, err := maps.Get(ctx, p.names.nameRecordName(r.note.Spec.Project, r.note.Spec.Name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && held.Labels[labelSession] != r.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return ignoreGone(maps.Delete(ctx, held.Name, deleteNow(held.UID)))
}
