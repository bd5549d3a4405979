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

// sweep removes the sandboxes whose time is over, and what is left of those that were
// never finished, and writes down how others have ended. Any provider of the same cluster
// does it: what one has done, another finds done. It asks the cluster for nothing.
func (p *Provider) sweep(ctx context.Context) (due time.Time) {
	if !p.view.isOpen() {
		return due // its opening rouses the sweeper
	}
	for _, object := range p.view.records() {
		r := p.read(object)
		t := r.due()
		var err error
		if !t.IsZero() && !time.Now().Before(t) {
			err = p.sweepAway(ctx, r.ID)
		} else if due = sweeper.Sooner(due, t); r.ended() || r.stray() != nil {
			err = p.writeDown(ctx, r.ID)
		} else if r.note.starting(time.Now()) {
			due = sweeper.Sooner(due, r.note.Until.Add(time.Second)) // it may leave a stray
		}
		for _, pod := range p.view.pods(r.ID, roleCaretaker) {
			if ended(pod) && err == nil {
				err = p.kill(ctx, pod)
			}
		}
		if err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("sweep", "sandbox", r.ID, "err", err)
			due = sweeper.Sooner(due, time.Now().Add(time.Second))
		}
	}
	for _, pod := range p.view.probes() {
		if ended(pod) && time.Since(pod.CreationTimestamp.Time) > 2*p.opts.Patience+lastTime { // its program was killed
			if err := p.kill(ctx, pod); err != nil && ctx.Err() == nil {
				p.opts.Log.Warn("sweep", "pod", pod.Name, "err", err)
			}
		}
	}
	return due
}

// due is when the sandbox's time is over; zero means that it is not known.
func (r *record) due() time.Time {
	if r.note.Over {
		return r.Created
	}
	if r.note.State == atoll.StateCreating && !r.note.Until.IsZero() {
		return r.note.Until.Add(time.Second)
	}
	return sweeper.Due(&r.Status, r.note.Idle)
}

// sweepAway removes a sandbox with its data volume, if it is still due: another program may
// have started it again, or given it more time, and none may any more once that is written
// down.
func (p *Provider) sweepAway(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.fresh(ctx, "remove", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if t := r.due(); t.IsZero() || time.Now().Before(t) || r.note.starting(time.Now()) {
		return nil
	}
	err = p.change(ctx, r, func(_ *corev1.ConfigMap, n *note) error {
		was := &r.note
		if n.State != was.State || n.Pod != was.Pod || n.Starter != was.Starter || !n.Until.Equal(was.Until) || !n.Expires.Equal(was.Expires) {
			return errElse
		}
		n.Over = true
		return nil
	})
	if errors.Is(err, errElse) || atoll.KindOf(err) == atoll.ErrNotFound || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	half := r.note.State == atoll.StateCreating // its data volume may be that of a sandbox before it
	return p.remove(ctx, id, atoll.RemoveOptions{Volumes: !half})
}

// stray is the pod of a sandbox that is not to run: whoever has started it has died before
// that was written down. It is nil if there is none.
func (r *record) stray() *corev1.Pod {
	pod := r.pod
	if pod == nil || pod.UID == r.note.Pod || pod.DeletionTimestamp != nil || ended(pod) {
		return nil
	}
	if r.note.State == atoll.StateCreating || r.note.State == atoll.StateRunning || r.note.starting(time.Now()) {
		return nil
	}
	return pod
}

// writeDown writes down how a sandbox has ended, or ends what is not to run. The API server
// is asked first: what is seen of records and of pods may be of different moments.
func (p *Provider) writeDown(ctx context.Context, id string) error {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r, err := p.fresh(ctx, "stop", id)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if stray := r.stray(); stray != nil {
		p.opts.Log.Warn("a pod that nobody has written down is deleted", "sandbox", id, "pod", stray.Name)
		return p.maker.rest(ctx, stray)
	}
	if !r.ended() {
		return nil
	}
	return p.fold(ctx, r)
}
