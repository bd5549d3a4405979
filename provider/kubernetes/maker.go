package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
)

// A maker makes the pods of sandboxes, one for each life, and unmakes them.
type maker interface {
	// make makes a sandbox's pod in place of what is left of its last life, and returns
	// it as the API server has it. Nothing is made when it fails.
	make(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error)
	// rest deletes a pod without waiting for its node: nothing of the sandbox runs in it
	// any more, or is to run, or the node is lost. Another life may begin then.
	rest(ctx context.Context, pod *corev1.Pod) error
	// drop deletes all that make has made for a sandbox, seen or not.
	drop(ctx context.Context, r *record) error
}

// direct makes pods itself.
type direct struct{ p *Provider }

func (d direct) make(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error) {
	if left := d.p.view.podOf(r.ID); left != nil {
		if err := d.p.kill(ctx, left); err != nil {
			return nil, err
		}
	}
	var made *corev1.Pod
	err := settled(ctx, func(ctx context.Context) (err error) {
		made, err = d.p.api.core.Pods(pod.Namespace).Create(ctx, pod, create)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil, d.taken(ctx, r, pod)
	}
	if err != nil {
		return nil, d.p.refused(r, err)
	}
	return made, nil
}

// taken says who has a pod of the sandbox.
func (d direct) taken(ctx context.Context, r *record, pod *corev1.Pod) error {
	held, err := d.p.api.core.Pods(pod.Namespace).Get(ctx, pod.Name, get)
	if err == nil && sandboxOf(held) != nil {
		return atoll.Errorf("start", r.ID, atoll.ErrConflict, "its pod is that of a Sandbox, which kubernetes.agent_sandbox was to make: set it again, or kubectl delete sandboxes.agents.x-k8s.io %s", pod.Name)
	}
	return startedElsewhere(r)
}

func startedElsewhere(r *record) error {
	return atoll.Errorf("start", r.ID, atoll.ErrConflict, "another program starts it at the moment")
}

func (d direct) rest(ctx context.Context, pod *corev1.Pod) error { return d.p.kill(ctx, pod) }

func (d direct) drop(ctx context.Context, r *record) error {
	if pod := d.p.view.podOf(r.ID); pod != nil {
		if err := d.p.kill(ctx, pod); err != nil {
			return err
		}
	}
	return gone(d.p.api.core.Pods(r.object.Namespace).Delete(ctx, d.p.names.sandbox(r.ID), now(""))) // one that the view does not know yet
}

// kill deletes a pod without waiting for its node. Another one may have its name then.
func (p *Provider) kill(ctx context.Context, pod *corev1.Pod) error {
	return gone(p.api.core.Pods(pod.Namespace).Delete(ctx, pod.Name, now(pod.UID)))
}

// sandboxOf is the Sandbox whose controller has made a pod; nil if none's has.
func sandboxOf(pod *corev1.Pod) *metav1.OwnerReference {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Sandbox" {
		return owner
	}
	return nil
}
