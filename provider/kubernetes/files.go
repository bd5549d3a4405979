package kubernetes

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// caretakerIdleStop is the time after which an unused caretaker ends.
const caretakerIdleStop = 30 * time.Second

func caretakerKey(id string) string { return "caretaker-" + id }

// reachCaretaker returns the volumes of a stopped sandbox, served by a caretaker: a guest in a
// pod with nothing else of the sandbox. The caretaker ends by itself when unused, and the next
// sweep deletes its pod.
func (p *Provider) reachCaretaker(ctx context.Context, op, id string, names []string) (atoll.Sandbox, error) {
	release, err := p.locks.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := p.findRecord(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if r.State == atoll.StateRunning {
		return p.reachGuest(ctx, op, id) // it was started meanwhile
	}
	if !r.note.Volume {
		return nil, atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped, and has no volumes")
	}
	if err := guestproc.AtRest(op, id, &r.Spec, names); err != nil {
		return nil, err
	}
	return p.visits.Reach(ctx, op, caretakerKey(id), p.opts.Patience+connectTimeout, func(ctx context.Context) (guestconn.Inside, error) {
		return p.connectCaretaker(ctx, op, r)
	})
}

// connectCaretaker connects to the caretaker of the sandbox. It starts one unless another
// program has.
func (p *Provider) connectCaretaker(ctx context.Context, op string, r *record) (guestconn.Inside, error) {
	for _, pod := range p.view.podsWithRole(r.ID, roleCaretaker) {
		if !podEnded(pod) && !isRunning(pod) { // another program has just created it
			continue
		}
		if !podEnded(pod) {
			if g, err := p.connectGuest(ctx, pod, r.ID); err == nil {
				return g, nil
			}
		}
		if err := p.deletePod(ctx, pod); err != nil { // it cannot be reached any more
			return nil, p.wrapError(ctx, op, r.ID, err)
		}
	}
	of := *r
	spec := *r.note.Spec.Clone()
	spec.Cmd, spec.TTY, spec.OpenStdin, spec.IdleStop = nil, nil, false, atoll.Duration(caretakerIdleStop)
	spec.Resources.GPUs = ""
	of.note.Spec = spec
	pod, err := p.buildPod(&of)
	if err != nil {
		return nil, err
	}
	pod.Name, pod.Labels[labelRole] = p.names.caretakerName(r.ID), roleCaretaker
	made, err := p.api.core.Pods(pod.Namespace).Create(ctx, pod, createOptions)
	if apierrors.IsAlreadyExists(err) {
		made, err = p.api.core.Pods(pod.Namespace).Get(ctx, pod.Name, getOptions)
	}
	if err != nil {
		return nil, p.wrapError(ctx, op, r.ID, p.podError(r, err))
	}
	patience, cancel := context.WithTimeout(ctx, p.opts.Patience)
	defer cancel()
	var now *corev1.Pod
	gone := false
	err = p.view.waitUntil(patience, r.ID, func() bool {
		all := p.view.podsWithRole(r.ID, roleCaretaker)
		i := slices.IndexFunc(all, func(pod *corev1.Pod) bool { return pod.UID == made.UID })
		if i < 0 {
			gone = now != nil // another program starts or removes the sandbox
			return gone
		}
		now = all[i]
		h := findBlocker(now)
		return isRunning(now) || podEnded(now) || h != nil && h.final
	})
	if err == nil && !gone && isRunning(now) {
		g, connectErr := p.connectGuest(ctx, pod, r.ID)
		if connectErr == nil {
			return g, nil
		}
		err = connectErr
	}
	if now != nil && !gone {
		if h := findBlocker(now); h != nil {
			err = p.blockerError(r.ID, now, h)
		}
	}
	_ = runCleanup(func(ctx context.Context) error { return p.deletePod(ctx, made) })
	return nil, atoll.Errorf(op, r.ID, atoll.ErrUnavailable, "cannot reach its volumes: %w", cmp.Or(err, errEnded))
}
