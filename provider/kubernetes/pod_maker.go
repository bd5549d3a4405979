package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A podMaker creates and deletes the pods of sandboxes, one for each run.
type podMaker interface {
	// createPod replaces the remains of a sandbox's last run by a new pod, and returns it as
	// the API server has it. If it fails, no pod is left.
	createPod(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error)
	// retirePod deletes a pod without waiting for its node. Nothing of the sandbox runs in it
	// any more, or should run, or the node is lost. The sandbox may be started again then.
	retirePod(ctx context.Context, pod *corev1.Pod) error
	// deletePods deletes everything that createPod has made for a sandbox, whether the view has
	// it or not.
	deletePods(ctx context.Context, r *record) error
}

// directMaker creates pods itself.
type directMaker struct{ p *Provider }

func (d directMaker) createPod(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error) {
	if left := d.p.view.podOf(r.ID); left != nil {
		if err := d.p.deletePod(ctx, left); err != nil {
			return nil, err
		}
	}
	var made *corev1.Pod
	err := remote.RunToEnd(ctx, func(ctx context.Context) (err error) {
		made, err = d.p.api.core.Pods(pod.Namespace).Create(ctx, pod, createOptions)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil, d.podConflict(ctx, r, pod)
	}
	if err != nil {
		return nil, d.p.podError(r.ID, err)
	}
	return made, nil
}

// podConflict returns the error for a pod that already exists; it names the creator.
func (d directMaker) podConflict(ctx context.Context, r *record, pod *corev1.Pod) error {
	held, err := d.p.api.core.Pods(pod.Namespace).Get(ctx, pod.Name, getOptions)
	if err == nil && sandboxOf(held) != nil {
		return atoll.Errorf("start", r.ID, atoll.ErrConflict, "a Sandbox of agent-sandbox owns its pod: set kubernetes.agent_sandbox again, or run kubectl delete sandboxes.agents.x-k8s.io %s", pod.Name)
	}
	return startConflict(r)
}

func startConflict(r *record) error {
	return atoll.Errorf("start", r.ID, atoll.ErrConflict, "another program is starting it")
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
	return ignoreGone(d.p.api.core.Pods(r.Object.record.Namespace).Delete(ctx, d.p.names.sandboxName(r.ID), deleteNow(""))) // the view may not have it yet
}

// deletePod deletes a pod without waiting for its node. Its name is free then.
func (p *Provider) deletePod(ctx context.Context, pod *corev1.Pod) error {
	return ignoreGone(p.api.core.Pods(pod.Namespace).Delete(ctx, pod.Name, deleteNow(pod.UID)))
}

// sandboxOf returns the Sandbox object that owns a pod; nil if none does.
func sandboxOf(pod *corev1.Pod) *metav1.OwnerReference {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Sandbox" {
		return owner
	}
	return nil
}
