package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// Launch implements remote.Runs. It creates the pod of a sandbox.
func (b backend) Launch(ctx context.Context, r *record) error {
	pod, err := b.buildPod(r)
	if err != nil {
		return err
	}
	made, err := b.maker.createPod(ctx, r, pod)
	if err != nil {
		return err
	}
	r.Object.pod, r.Note.Run = made, string(made.UID)
	if err := b.awaitGuest(ctx, r); err != nil {
		b.engine.Guests.Cancel(r.ID)
		return errors.Join(err, remote.RunCleanup(func(ctx context.Context) error { return b.maker.retirePod(ctx, r.Object.pod) }))
	}
	return nil
}

// awaitGuest returns nil when the guest of a new pod answers, or when the main process has run
// and ended. Otherwise it returns the reason.
func (p *Provider) awaitGuest(ctx context.Context, r *record) error {
	uid, id := r.Object.pod.UID, r.ID
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
			pod = r.Object.pod // the view is behind
		}
		if e := endOfPod(pod, r.Note.Spec.Resources); e != nil {
			r.Object.pod = pod
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
				r.Object.pod = pod
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
func startFailure(id string, e *podEnd) error {
	if e.report.Kind != "" || e.report.Message != "" {
		return atoll.Errorf("start", id, e.report.Kind, "%s", e.report.Message)
	}
	if e.exit.Reason != "" && e.report.Main == nil {
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "%s", e.exit.Reason)
	}
	return nil
}

// FinishRun implements remote.Runs. If the guest has not answered, the node ends the pod, or is
// lost.
func (b backend) FinishRun(ctx context.Context, r *record, grace time.Duration, answered bool) (out *guest.Printed, err error) {
	if !answered {
		if err := b.endPod(ctx, r, grace); err != nil {
			return nil, err
		}
	}
	err = remote.RunToEnd(ctx, func(ctx context.Context) error {
		out = b.readOutput(ctx, r)
		if answered && out.Report.Main == nil && len(r.Note.Spec.Cmd) > 0 { // containerd may lose the end of a log
			if pod, err := b.awaitPodEnd(ctx, r, reachTimeout); err == nil && isRunOf(pod, r) {
				out.Report = endOfPod(pod, r.Note.Spec.Resources).report
			}
		}
		return nil
	})
	return out, err
}

// endPod makes a node end the pod of a sandbox, and waits until the node has reported that.
func (p *Provider) endPod(ctx context.Context, r *record, grace time.Duration) error {
	pod, seconds := r.Object.pod, int64(grace.Seconds())+1
	if err := ignoreGone(p.api.core.Pods(pod.Namespace).Delete(ctx, pod.Name, deleteWithin(pod.UID, seconds))); err != nil {
		return err
	}
	_, err := p.awaitPodEnd(ctx, r, grace+2*reachTimeout)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		p.opts.Log.Warn("stop: the node does not report the end of the pod", "sandbox", r.ID, "node", pod.Spec.NodeName)
	}
	return nil
}

// awaitPodEnd waits until the pod of a run has ended or is gone. It returns the sandbox's pod then: nil,
// or another one if the run's is gone.
func (p *Provider) awaitPodEnd(ctx context.Context, r *record, within time.Duration) (pod *corev1.Pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err = p.view.waitUntil(ctx, r.ID, func() bool {
		pod = p.view.podOf(r.ID)
		return pod == nil || pod.UID != r.Object.pod.UID || podEnded(pod)
	})
	return pod, err
}

// killedEnd returns the end of a pod of which no other end is known.
func killedEnd() *podEnd { return &podEnd{exit: remote.KilledExit(), at: time.Now()} }

// reachTimeout bounds the check whether a guest can be reached.
const reachTimeout = 5 * time.Second

// RecordEnd implements remote.Runs. It stores the pod's log and deletes the pod: nothing runs
// in it, and its node forgets it. It leaves the pod of a failed sandbox to the cluster, for
// users who want to look into it.
func (b backend) RecordEnd(ctx context.Context, r *record) error {
	if !hasEnded(r) {
		return nil
	}
	was := *r
	pod, e, out := r.Object.pod, killedEnd(), guest.NothingPrinted()
	if isRunOf(pod, r) {
		if found := endOfPod(pod, r.Note.Spec.Resources); found != nil {
			e = found
		}
		out = b.readOutput(ctx, r)
	}
	end := &remote.End{State: r.State, Exit: r.Exit, Reason: r.Reason, Idle: r.Note.Idle, At: e.at, Image: r.Image}
	if len(r.Note.Spec.Cmd) > 0 && end.Exit == nil {
		exit := e.exit
		if out.Report.Main != nil {
			exit = *out.Report.Main
			exit.Duration = 0
		}
		end.Exit = &exit
	}
	err := b.engine.WriteEnd(ctx, r, end, out)
	if errors.Is(err, remote.ErrDoneElsewhere) {
		return nil
	}
	if err != nil || was.State == atoll.StateFailed {
		return err
	}
	return b.RetireRun(ctx, &was)
}

// RetireRun implements remote.Runs.
func (b backend) RetireRun(ctx context.Context, r *record) error {
	if r.Object.pod == nil {
		return nil
	}
	return b.maker.retirePod(ctx, r.Object.pod)
}

// EndRun implements remote.Runs.
func (b backend) EndRun(ctx context.Context, r *record) error { return b.RetireRun(ctx, r) }

// EndStrays implements remote.Runs.
func (b backend) EndStrays(ctx context.Context, r *record) error {
	pod := b.view.podOf(r.ID)
	if pod == nil || pod.DeletionTimestamp != nil || podEnded(pod) {
		return nil
	}
	return b.maker.retirePod(ctx, pod)
}

// DropRuns implements remote.Runs.
func (b backend) DropRuns(ctx context.Context, r *record) error {
	if r.State == atoll.StateRunning {
		b.killProcesses(ctx, r.ID)
	}
	if err := b.maker.deletePods(ctx, r); err != nil {
		return err
	}
	return ignoreGone(b.api.net.NetworkPolicies(r.Object.record.Namespace).Delete(ctx, b.names.sandboxName(r.ID), deleteNow("")))
}

// killProcesses ends the processes of a sandbox that is being removed, if its guest answers;
// otherwise its node ends them a moment later.
func (p *Provider) killProcesses(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if inside, err := p.engine.ReachGuest(ctx, "remove", id); err == nil {
		_ = inside.Stop(ctx, 0)
	}
}

const killTimeout = 2 * time.Second

// Survey implements remote.Runs. It reads only the view, which many programs share a cluster
// with, and asks the API server before it changes anything.
func (b backend) Survey(ctx context.Context) (records []*record, due time.Time, err error) {
	if !b.view.isOpen() {
		return nil, due, nil // the view wakes the sweeper when it is open
	}
	records = b.knownRecords()
	for _, r := range records {
		var err error
		if t := r.DueTime(); !t.IsZero() && !time.Now().Before(t) {
			continue // the engine removes it, or undoes its start
		}
		if hasEnded(r) || strayPod(r) != nil {
			err = b.reconcilePod(ctx, r.ID)
		}
		for _, pod := range b.view.podsWithRole(r.ID, roleCaretaker) {
			if podEnded(pod) && err == nil {
				err = b.deletePod(ctx, pod)
			}
		}
		if err != nil && ctx.Err() == nil {
			b.opts.Log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Earlier(due, time.Now().Add(time.Second))
		}
	}
	for _, pod := range b.view.probePods() {
		if podEnded(pod) && time.Since(pod.CreationTimestamp.Time) > 2*b.opts.Patience+remote.CleanupTimeout { // its program was killed
			if err := b.deletePod(ctx, pod); err != nil && ctx.Err() == nil {
				b.opts.Log.Warn("sweep", "pod", pod.Name, "err", err)
			}
		}
	}
	return records, due, nil
}

// strayPod returns the pod of a sandbox that should not run: the program that started it died
// before it recorded the start. It returns nil if there is no such pod.
func strayPod(r *record) *corev1.Pod {
	pod := r.Object.pod
	if pod == nil || pod.DeletionTimestamp != nil || podEnded(pod) || r.Object.damaged {
		return nil
	}
	if r.Note.State == atoll.StateCreating || r.Note.State == atoll.StateRunning || r.Note.IsStarting(time.Now()) {
		return nil
	}
	return pod
}

// reconcilePod records the end of a sandbox, or deletes its stray pod. It asks the API server
// first: the view may have a record and a pod of different moments.
func (b backend) reconcilePod(ctx context.Context, id string) error {
	err := b.engine.NewHandle(id).WithLockedRecord(ctx, "stop", func(r *record) error {
		if stray := strayPod(r); stray != nil {
			b.opts.Log.Warn("delete a stray pod", "sandbox", id, "pod", stray.Name)
			return b.maker.retirePod(ctx, stray)
		}
		return b.RecordEnd(ctx, r)
	})
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	return err
}
