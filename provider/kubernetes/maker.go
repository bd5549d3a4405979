package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
)

// A maker makes the pods of sandboxes, one for each life, and unmakes them.
type podMaker interface {
	// createPod makes a sandbox's pod in place of what is left of its last life, and returns
	// it as the API server has it. Nothing is made when it fails.
	createPod(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error)
	// retirePod deletes a pod without waiting for its node: nothing of the sandbox runs in it
	// any more, or is to run, or the node is lost. Another life may begin then.
	retirePod(ctx context.Context, pod *corev1.Pod) error
	// deletePods deletes all that make has made for a sandbox, seen or not.
	deletePods(ctx context.Context, r *record) error
}

// directMaker makes pods itself.
type directMaker struct{ p *Provider }

func (d directMaker) createPod(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error) {
	if left := d.p.view.podOf(r.ID); left != nil {
		if err := d.p.deletePod(ctx, left); err != nil {
			return nil, err
		}
	}
	var made *corev1.Pod
	err := runToEnd(ctx, func(ctx context.Context) (err error) {
		made, err = d.p.api.core.Pods(pod.Namespace).Create(ctx, pod, createOptions)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil, d.podConflict(ctx, r, pod)
	}
	if err != nil {
		return nil, d.p.podError(r, err)
	}
	return made, nil
}

// podConflict says who has a pod of the sandbox.
func (d directMaker) podConflict(ctx context.Context, r *record, pod *corev1.Pod) error {
	held, err := d.p.api.core.Pods(pod.Namespace).Get(ctx, pod.Name, getOptions)
	if err == nil && sandboxOf(held) != nil {
		return atoll.Errorf("start", r.ID, atoll.ErrConflict, "its pod is that of a Sandbox, which kubernetes.agent_sandbox was to make: set it again, or kubectl delete sandboxes.agents.x-k8s.io %s", pod.Name)
	}
	return startConflict(r)
}

func startConflict(r *record) error {
	return atoll.Errorf("start", r.ID, atoll.ErrConflict, "another program starts it at the moment")
}

func (d directMaker) retirePod(ctx context.Context, pod *corev1.Pod) error {
	return d.p.deletePod(ctx, pod)
}

func (d directMaker) deletePods(ctx context.Context, r *record) error {
	if pod := d.p.view.podOf(r.ID); pod != nil {
		if err := d.p.deletePod(ctx, pod); err != nil {
			return err
		}
	}
	return ignoreGone(d.p.api.core.Pods(r.object.Namespace).Delete(ctx, d.p.names.sandboxName(r.ID), deleteNow(""))) // one that the view does not know yet
}

// deletePod deletes a pod without waiting for its node. Another one may have its name then.
func (p *Provider) deletePod(ctx context.Context, pod *corev1.Pod) error {
	return ignoreGone(p.api.core.Pods(pod.Namespace).Delete(ctx, pod.Name, deleteNow(pod.UID)))
}

// sandboxOf is the Sandbox whose controller has made a pod; nil if none's has.
func sandboxOf(pod *corev1.Pod) *metav1.OwnerReference {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Sandbox" {
		return owner
	}
	return nil
}
