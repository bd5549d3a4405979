package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// AgentSandbox selects whether the controller of kubernetes-sigs/agent-sandbox creates the pods
// of sandboxes, each through a Sandbox object of the cluster, which kubectl get sandboxes
// shows.
type AgentSandbox string

// The values of AgentSandbox.
const (
	AgentSandboxOff  AgentSandbox = "off"
	AgentSandboxAuto AgentSandbox = "auto" // if the cluster has agent-sandbox and the account may use it
	AgentSandboxOn   AgentSandbox = "on"   // without agent-sandbox, sandboxes cannot be started
)

// The API of agent-sandbox, as far as this package uses it. A newer version is preferred.
const agentGroup = "agents.x-k8s.io"

var agentVersions = []string{"v1beta1", "v1alpha1"}

// startGate keeps the scheduler from placing a pod of a Sandbox until ungatePod removes the
// gate: the controller creates another pod whenever one is deleted, and a main process must not
// run twice.
const startGate = "atoll/start"

// controllerTimeout is the longest wait for the controller to create a pod.
const controllerTimeout = 30 * time.Second

// errNoController reports that the controller created no pod in time.
var errNoController = errors.New("agent-sandbox created no pod: check its controller with kubectl get pods -n agent-sandbox-system")

// An agentSandbox is a Sandbox object of agent-sandbox, with the fields that this package uses.
type agentSandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              agentSandboxSpec `json:"spec"`
	Status            struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status,omitzero"`
}

type agentSandboxSpec struct {
	PodTemplate agentTemplate `json:"podTemplate"`
	Service     bool          `json:"service"` // false: Atoll needs no Service for it
	agentMode   `json:",inline"`
}

type agentTemplate struct {
	Metadata struct {
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec corev1.PodSpec `json:"spec"`
}

// An agentMode tells the controller whether a Sandbox should have a pod, in the fields of its
// API version.
type agentMode struct {
	OperatingMode string `json:"operatingMode,omitempty"` // v1beta1
	Replicas      *int32 `json:"replicas,omitempty"`      // v1alpha1
}

// agentMaker lets the controller of agent-sandbox create pods. A Sandbox object exists from one
// start to the next, or to the removal; in between, it is suspended.
type agentMaker struct {
	p         *Provider
	version   string
	client    dynamic.Interface
	sandboxes dynamic.NamespaceableResourceInterface
	warm      *warmPool // nil if no pods are kept warm
}

func newAgentMaker(p *Provider, version string) (*agentMaker, error) {
	client, err := dynamic.NewForConfigAndClient(p.api.config, p.api.client)
	if err != nil {
		return nil, err
	}
	sandboxes := client.Resource(schema.GroupVersionResource{Group: agentGroup, Version: version, Resource: "sandboxes"})
	return &agentMaker{p: p, version: version, client: client, sandboxes: sandboxes}, nil
}

// prepareWarmPool makes the cluster keep pods warm, or stop keeping them. If that fails, each
// sandbox gets a pod of its own.
func (a *agentMaker) prepareWarmPool(ctx context.Context) {
	pods := a.p.opts.WarmPods
	if a.p.opts.PerProject {
		return
	}
	served, err := a.p.servesKinds(ctx, warmGroup, warmVersion, warmKinds...)
	if err == nil && !served {
		err = errNoWarmPools
	}
	var w *warmPool
	if err == nil {
		w, err = newWarmPool(a.p, a.client)
	}
	if err == nil {
		err = w.configurePool(ctx, pods)
	}
	switch {
	case pods > 0 && err == nil:
		a.warm = w
	case pods > 0:
		a.p.opts.Log.Warn("cannot keep pods warm", "err", err)
	}
}

// operatingMode returns the mode in which a Sandbox has a pod, or has none, in this API
// version.
func (a *agentMaker) operatingMode(runs bool) agentMode {
	if a.version == "v1alpha1" {
		var replicas int32
		if runs {
			replicas = 1
		}
		return agentMode{Replicas: &replicas}
	}
	if runs {
		return agentMode{OperatingMode: "Running"}
	}
	return agentMode{OperatingMode: "Suspended"}
}

// createPod implements podMaker.
func (a *agentMaker) createPod(ctx context.Context, r *record, pod *corev1.Pod) (*corev1.Pod, error) {
	if err := a.clearRemains(ctx, r); err != nil {
		return nil, err
	}
	if a.warm != nil && r.Note.State == atoll.StateCreating && a.warm.fitsPod(pod) {
		if taken, err := a.warm.takePod(ctx, r); taken != nil || err != nil {
			return taken, err
		}
	}
	sb := agentSandbox{
		TypeMeta:   metav1.TypeMeta{APIVersion: agentGroup + "/" + a.version, Kind: "Sandbox"},
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences},
		Spec:       agentSandboxSpec{agentMode: a.operatingMode(true)},
	}
	sb.Spec.PodTemplate.Metadata.Labels, sb.Spec.PodTemplate.Spec = pod.Labels, pod.Spec
	sb.Spec.PodTemplate.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: startGate}}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&sb)
	if err != nil {
		return nil, err
	}
	var made *unstructured.Unstructured
	err = remote.RunToEnd(ctx, func(ctx context.Context) (err error) {
		made, err = a.sandboxes.Namespace(pod.Namespace).Create(ctx, &unstructured.Unstructured{Object: fields}, createOptions)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil, startConflict(r)
	}
	if apierrors.IsNotFound(err) { // agent-sandbox was removed from the cluster
		return nil, atoll.E("start", r.ID, atoll.ErrUnavailable, err)
	}
	if err != nil {
		return nil, a.p.podError(r.ID, err)
	}
	started, err := a.awaitPod(ctx, r, made.GetUID())
	if err != nil {
		return nil, errors.Join(err, remote.RunCleanup(func(ctx context.Context) error {
			return ignoreGone(a.sandboxes.Namespace(pod.Namespace).Delete(ctx, pod.Name, deleteNow(made.GetUID())))
		}))
	}
	return started, nil
}

// clearRemains deletes the objects of a sandbox's last run, as far as the view has them.
func (a *agentMaker) clearRemains(ctx context.Context, r *record) error {
	for _, left := range objectsOf[*unstructured.Unstructured](a.p.view.agentSandboxes, r.ID) {
		if err := ignoreGone(a.sandboxes.Namespace(left.GetNamespace()).Delete(ctx, left.GetName(), deleteNow(left.GetUID()))); err != nil {
			return err
		}
	}
	if a.warm != nil && len(objectsOf[*unstructured.Unstructured](a.p.view.warmClaims, r.ID)) > 0 {
		if err := a.warm.dropClaim(ctx, r.ID); err != nil {
			return err
		}
	}
	if pod := a.p.view.podOf(r.ID); pod != nil {
		return a.p.deletePod(ctx, pod)
	}
	return nil
}

// awaitPod waits for the pod of a Sandbox and lets the scheduler place it.
func (a *agentMaker) awaitPod(ctx context.Context, r *record, uid types.UID) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, min(controllerTimeout, a.p.opts.Patience), errNoController)
	defer cancel()
	trouble := ""
	for {
		change := a.p.view.nextChange(r.ID)
		if pod := a.p.view.podOf(r.ID); pod != nil {
			if owner := sandboxOf(pod); owner == nil || owner.UID != uid { // of the run before, from a controller that is behind
				if err := a.p.deletePod(ctx, pod); err != nil {
					return nil, err
				}
			} else if let, err := a.ungatePod(ctx, pod); ignoreGone(err) != nil {
				return nil, err
			} else if err == nil {
				return let, nil
			}
		}
		for _, seen := range objectsOf[*unstructured.Unstructured](a.p.view.agentSandboxes, r.ID) {
			if seen.GetUID() == uid {
				var err error
				if trouble, err = reconcileError(r.ID, seen); err != nil {
					return nil, err
				}
			}
		}
		select {
		case <-change:
		case <-ctx.Done():
			if context.Cause(ctx) != errNoController {
				return nil, ctx.Err()
			}
			if trouble != "" {
				return nil, atoll.Errorf("start", r.ID, atoll.ErrUnavailable, "agent-sandbox cannot create its pod: %s", trouble)
			}
			return nil, atoll.E("start", r.ID, atoll.ErrUnavailable, errNoController)
		}
	}
}

// ungatePod lets the scheduler place this very pod, identified by its uid.
func (a *agentMaker) ungatePod(ctx context.Context, pod *corev1.Pod) (let *corev1.Pod, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "spec": map[string]any{"schedulingGates": nil}})
	if err != nil {
		return nil, err
	}
	err = remote.RunToEnd(ctx, func(ctx context.Context) error {
		let, err = a.p.api.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, patchOptions)
		return err
	})
	return let, err
}

// reconcileError returns the controller's reason for not creating the pod of a Sandbox. It
// returns an error instead if a retry by the controller cannot help.
func reconcileError(id string, object *unstructured.Unstructured) (trouble string, err error) {
	var sb agentSandbox
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &sb); err != nil {
		return "", err
	}
	i := slices.IndexFunc(sb.Status.Conditions, func(c metav1.Condition) bool { return c.Type == "Ready" && c.Reason == "ReconcilerError" })
	if i < 0 {
		return "", nil
	}
	trouble = strings.TrimPrefix(sb.Status.Conditions[i].Message, "Error seen: ")
	switch {
	case strings.Contains(trouble, "exceeded quota"):
		return "", atoll.Errorf("create", id, atoll.ErrExhausted, "%s", trouble)
	case strings.Contains(trouble, "is forbidden"):
		return "", atoll.Errorf("create", id, atoll.ErrUnavailable, "the cluster does not allow its pod: %s", trouble)
	case strings.Contains(trouble, "is invalid") && strings.Contains(trouble, "image"):
		return "", atoll.Errorf("create", id, atoll.ErrInvalid, "%s", trouble)
	}
	return trouble, nil
}

// retirePod implements podMaker. It suspends the Sandbox first, or the controller would create
// another pod.
func (a *agentMaker) retirePod(ctx context.Context, pod *corev1.Pod) error {
	if owner := sandboxOf(pod); owner != nil {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": owner.UID}, "spec": a.operatingMode(false)})
		if err != nil {
			return err
		}
		_, err = a.sandboxes.Namespace(pod.Namespace).Patch(ctx, owner.Name, types.MergePatchType, patch, patchOptions)
		if err := ignoreGone(err); err != nil {
			return err
		}
	}
	return a.p.deletePod(ctx, pod)
}

// deletePods implements podMaker.
func (a *agentMaker) deletePods(ctx context.Context, r *record) error {
	if err := ignoreGone(a.sandboxes.Namespace(r.Object.record.Namespace).Delete(ctx, a.p.names.sandboxName(r.ID), deleteNow(""))); err != nil {
		return err
	}
	if a.warm != nil {
		if err := a.warm.dropClaim(ctx, r.ID); err != nil {
			return err
		}
	}
	return directMaker{a.p}.deletePods(ctx, r)
}

// missingMaker stands in for an agent-sandbox that is required and not installed: no sandbox
// can start, and running ones go on.
type missingMaker struct {
	directMaker
	err error
}

func (a missingMaker) createPod(context.Context, *record, *corev1.Pod) (*corev1.Pod, error) {
	return nil, a.err
}
