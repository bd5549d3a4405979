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

// sweepSandboxes removes expired sandboxes and the remains of abandoned creations, and records
// the ends of others. Every provider of the cluster sweeps; if two do the same work, the second
// finds it done. It reads only the view, and returns the time of the next sweep.
func (p *Provider) sweepSandboxes(ctx context.Context) (due time.Time) {
	if !p.view.isOpen() {
		return due // opening the view wakes the sweeper
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
			due = sweeper.Sooner(due, r.note.LeaseExpires.Add(time.Second)) // the start may leave a stray pod
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

// dueTime returns the expiry of the sandbox; zero means that it is not known.
func (r *record) dueTime() time.Time {
	if r.note.Removing {
		return r.Created
	}
	if r.note.State == atoll.StateCreating && !r.note.LeaseExpires.IsZero() {
		return r.note.LeaseExpires.Add(time.Second)
	}
	return sweeper.Due(&r.Status, r.note.Idle)
}

// removeExpired removes a sandbox with its data volume, if it still is expired: another program
// may have started or extended it. It first sets Removing in the record, which prevents both.
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
		if n.State != was.State || n.Pod != was.Pod || n.Starter != was.Starter || !n.LeaseExpires.Equal(was.LeaseExpires) || !n.Expires.Equal(was.Expires) {
			return errDoneElsewhere
		}
		n.Removing = true
		return nil
	})
	if errors.Is(err, errDoneElsewhere) || atoll.KindOf(err) == atoll.ErrNotFound || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	half := r.note.State == atoll.StateCreating // its data volume may belong to an earlier sandbox with its id
	return p.removeSandbox(ctx, id, atoll.RemoveOptions{Volumes: !half})
}

// strayPod returns the pod of a sandbox that should not run: the program that started it died
// before it recorded the start. It returns nil if there is no such pod.
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

// reconcilePod records the end of a sandbox, or deletes its stray pod. It asks the API server
// first: the view may have a record and a pod of different moments.
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
		p.opts.Log.Warn("delete a stray pod", "sandbox", id, "pod", stray.Name)
		return p.maker.retirePod(ctx, stray)
	}
	if !r.hasEnded() {
		return nil
	}
	return p.recordEnd(ctx, r)
}
