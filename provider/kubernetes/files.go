package kubernetes

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// ConnectCaretaker implements remote.Runs. The caretaker is a pod; when it has ended, the next
// sweep deletes it.
func (b backend) ConnectCaretaker(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	p := b.Provider
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
	of.Note.Spec = *remote.CaretakerSpec(&r.Note.Spec)
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
		return nil, p.wrapError(ctx, op, r.ID, p.podError(r.ID, err))
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
	_ = remote.RunCleanup(func(ctx context.Context) error { return p.deletePod(ctx, made) })
	return nil, atoll.Errorf(op, r.ID, atoll.ErrUnavailable, "cannot reach its volumes: %w", cmp.Or(err, errEnded))
}

// EndCaretaker implements remote.Runs.
func (b backend) EndCaretaker(ctx context.Context, r *record) error {
	return ignoreGone(b.api.core.Pods(r.Object.record.Namespace).Delete(ctx, b.names.caretakerName(r.ID), deleteNow("")))
}
