package kubernetes

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/sweeper"
)

// sweepSandboxes removes the sandboxes whose time is over, and what is left of those that were
// never finished, and writes down how others have ended. Any provider of the same cluster
// does it: what one has done, another finds done. It asks the cluster for nothing.
func (p *Provider) sweepSandboxes(ctx context.Context) (due time.Time) {
	if !p.view.isOpen() {
		return due // its opening rouses the sweeper
	}
	for _, object := range p.view.allRecords() {
		r := p.decodeRecord(object)
		t := r.dueTime()
		var err error
		if !t.IsZero() && !time.Now().Before(t) {
			err = p.removeExpired(ctx, r.ID)
		} else if due = sweeper.Sooner(due, t); r.hasEnded() || r.strayPod() != nil {
			err = p.reconcilePod(ctx, r.ID)
		} else if r.note.isStarting(time.Now()) {
			due = sweeper.Sooner(due, r.note.Until.Add(time.Second)) // it may leave a stray
		}
		for _, pod := range p.view.podsWithRole(r.ID, roleCaretaker) {
			if podEnded(pod) && err == nil {
				err = p.deletePod(ctx, pod)
			}
		}
		if err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Sooner(due, time.Now().Add(time.Second))
		}
	}
	for _, pod := range p.view.probePods() {
		if podEnded(pod) && time.Since(pod.CreationTimestamp.Time) > 2*p.opts.Patience+cleanupTimeout { // its program was killed
			if err := p.deletePod(ctx, pod); err != nil && ctx.Err() == nil {
				p.opts.Log.Warn("sweep", "pod", pod.Name, "err", err)
			}
		}
	}
	return due
}

// dueTime is when the sandbox's time is over; zero means that it is not known.
func (r *record) dueTime() time.Time {
	if r.note.Over {
		return r.Created
	}
	if r.note.State == atoll.StateCreating && !r.note.Until.IsZero() {
		return r.note.Until.Add(time.Second)
	}
	return sweeper.Due(&r.Status, r.note.Idle)
}

// removeExpired removes a sandbox with its data volume, if it is still due: another program may
// have started it again, or given it more time, and none may any more once that is written
// down.
func (p *Provider) removeExpired(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.findLatestRecord(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.dueTime(); t.IsZero() || time.Now().Before(t) || r.note.isStarting(time.Now()) {
		return nil
	}
	err = p.updateRecord(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
		was := &r.note
		if n.State != was.State || n.Pod != was.Pod || n.Starter != was.Starter || !n.Until.Equal(was.Until) || !n.Expires.Equal(was.Expires) {
			return errDoneElsewhere
		}
		n.Over = true
		return nil
	})
	if errors.Is(err, errDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	half := r.note.State == atoll.StateCreating // its data volume may be that of a sandbox before it
	return p.removeSandbox(ctx, id, atoll.RemoveOptions{Volumes: !half})
}

// strayPod is the pod of a sandbox that is not to run: whoever has started it has died before
// that was written down. It is nil if there is none.
func (r *record) strayPod() *corev1.Pod {
	pod := r.pod
	if pod == nil || pod.UID == r.note.Pod || pod.DeletionTimestamp != nil || podEnded(pod) {
		return nil
	}
	if r.note.State == atoll.StateCreating || r.note.State == atoll.StateRunning || r.note.isStarting(time.Now()) {
		return nil
	}
	return pod
}

// reconcilePod writes down how a sandbox has ended, or ends what is not to run. The API server
// is asked first: what is seen of records and of pods may be of different moments.
func (p *Provider) reconcilePod(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.findLatestRecord(ctx, "stop", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if stray := r.strayPod(); stray != nil {
		p.opts.Log.Warn("a pod that nobody has written down is deleted", "sandbox", id, "pod", stray.Name)
		return p.maker.retirePod(ctx, stray)
	}
	if !r.hasEnded() {
		return nil
	}
	return p.recordEnd(ctx, r)
}
