package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/seed46cd37a8/atoll"
)

// The API of agent-sandbox by which pods are kept warm. What its older version means has
// changed from release to release.
const (
	warmGroup   = "extensions.agents.x-k8s.io"
	warmVersion = "v1beta1"
)

var warmKinds = []string{"sandboxclaims", "sandboxtemplates", "sandboxwarmpools"}

// warmTimeout is how long the controller may take to hand over a pod that waits. After that a
// sandbox gets one of its own.
const warmTimeout = 3 * time.Second

// A warm is a SandboxWarmPool: pods whose guests wait to be told whose they are. They can be
// had by any sandbox whose own pod would be like them but for what its guest is told.
type warmPool struct {
	p                        *Provider
	claims, templates, pools dynamic.ResourceInterface
	podSpec                  corev1.PodSpec
}

func newWarmPool(p *Provider, client dynamic.Interface) (*warmPool, error) {
	of := func(kind string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: warmGroup, Version: warmVersion, Resource: kind}).Namespace(p.opts.Namespace)
	}
	w := &warmPool{p: p, claims: of(warmKinds[0]), templates: of(warmKinds[1]), pools: of(warmKinds[2])}
	plain := &record{object: &corev1.ConfigMap{}}
	plain.note.Spec = atoll.Spec{ID: atoll.NewID(), Project: atoll.DefaultProject, Workdir: atoll.DefaultWorkdir, Resources: p.opts.WarmResources}
	pod, err := p.buildPod(plain)
	if err != nil {
		return nil, err
	}
	w.podSpec = waitingSpec(pod)
	return w, nil
}

// waitingSpec is the pod with a guest that waits to be told whose it is.
func waitingSpec(pod *corev1.Pod) corev1.PodSpec {
	spec := *pod.Spec.DeepCopy()
	spec.Hostname = ""
	for i := range spec.Containers {
		if c := &spec.Containers[i]; c.Name == mainContainer {
			c.Command = []string{guestPath, "init", "-"}
		}
	}
	return spec
}

// fitsPod reports whether a pod that waits can be that of a sandbox.
func (w *warmPool) fitsPod(pod *corev1.Pod) bool {
	return equality.Semantic.DeepEqual(w.podSpec, waitingSpec(pod))
}

// configurePool has the cluster keep so many pods, or none.
func (w *warmPool) configurePool(ctx context.Context, pods int) error {
	name := w.p.names.warmPoolName()
	if pods == 0 {
		return errors.Join(ignoreGone(w.pools.Delete(ctx, name, deleteNow(""))), ignoreGone(w.templates.Delete(ctx, name, deleteNow(""))))
	}
	var template struct {
		PodTemplate             agentTemplate `json:"podTemplate"`
		Service                 bool          `json:"service"`
		NetworkPolicy           struct{}      `json:"networkPolicy"` // which allows nothing: a sandbox's own adds to it
		NetworkPolicyManagement string        `json:"networkPolicyManagement"`
	}
	template.NetworkPolicyManagement = "Managed"
	template.PodTemplate.Metadata.Labels, template.PodTemplate.Spec = w.poolLabels(), w.podSpec
	if err := w.applyObject(ctx, w.templates, "SandboxTemplate", &template); err != nil {
		return err
	}
	return w.applyObject(ctx, w.pools, "SandboxWarmPool", &map[string]any{
		"replicas": int64(pods), "sandboxTemplateRef": map[string]any{"name": name}, "updateStrategy": map[string]any{"type": "Recreate"},
	})
}

// poolLabels are those of what is no sandbox's yet.
func (w *warmPool) poolLabels() map[string]string {
	return map[string]string{labelManaged: "atoll", labelOwner: string(w.p.names)}
}

// applyObject makes an object what it is to be, whoever has made it.
func (w *warmPool) applyObject(ctx context.Context, to dynamic.ResourceInterface, kind string, spec any) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": warmGroup + "/" + warmVersion, "kind": kind, "spec": fields}}
	object.SetName(w.p.names.warmPoolName())
	object.SetLabels(w.poolLabels())
	_, err = to.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "atoll", Force: true})
	return err
}

// A warmClaim is a SandboxClaim, as far as it is used here.
type warmClaim struct {
	Status struct {
		Sandbox struct {
			Name string `json:"name"`
		} `json:"sandbox"`
	} `json:"status"`
}

// takePod takes a pod that waits, and tells its guest whose it is. There is none, and nothing
// left, when it returns nil.
func (w *warmPool) takePod(ctx context.Context, r *record) (pod *corev1.Pod, err error) {
	config, err := w.p.guestConfig(&r.note.Spec)
	if err != nil {
		return nil, err
	}
	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": warmGroup + "/" + warmVersion, "kind": "SandboxClaim",
		"spec": map[string]any{"warmPoolRef": map[string]any{"name": w.p.names.warmPoolName()}},
	}}
	claim.SetName(w.p.names.warmClaimName(r.ID))
	claim.SetLabels(w.p.names.sandboxLabels(roleSandbox, &r.note.Spec))
	claim.SetOwnerReferences(ownedBy(r))
	err = runToEnd(ctx, func(ctx context.Context) (err error) {
		claim, err = w.claims.Create(ctx, claim, createOptions)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil, nil // of one with this id that goes at the moment
	}
	if err != nil {
		return nil, err
	}
	told := false
	wait, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	if pod, err = w.awaitPod(wait, r, claim); err == nil {
		told = true // or may be
		err = w.p.configureGuest(ctx, pod, config)
	}
	if err == nil {
		return pod, nil
	}
	left := runCleanup(func(ctx context.Context) error { return w.returnPod(ctx, pod, claim) })
	if !told && wait.Err() != nil && ctx.Err() == nil || errors.Is(err, errNoWarmPod) {
		return nil, left
	}
	return nil, errors.Join(err, left)
}

// errNoWarmPod says that no pod waits.
var errNoWarmPod = errors.New("no pod waits")

// awaitPod waits for the pod of a claim, and labels it as the sandbox's: a claim may set labels
// of those domains only that the settings of its controller name.
func (w *warmPool) awaitPod(ctx context.Context, r *record, claim *unstructured.Unstructured) (*corev1.Pod, error) {
	name := ""
	err := w.p.view.waitUntil(ctx, r.ID, func() bool {
		for _, seen := range objectsOf[*unstructured.Unstructured](w.p.view.warmClaims, r.ID) {
			var c warmClaim
			if seen.GetUID() == claim.GetUID() && runtime.DefaultUnstructuredConverter.FromUnstructured(seen.Object, &c) == nil {
				name = c.Status.Sandbox.Name
			}
		}
		return name != ""
	})
	if err != nil {
		return nil, err
	}
	if name == claim.GetName() { // it is made now
		return nil, errNoWarmPod
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": w.p.names.sandboxLabels(roleSandbox, &r.note.Spec)}})
	if err != nil {
		return nil, err
	}
	pod, err := w.p.api.core.Pods(r.object.Namespace).Patch(ctx, name, types.MergePatchType, patch, patchOptions)
	if apierrors.IsNotFound(err) {
		return nil, errNoWarmPod // it is made again
	}
	if err != nil {
		return nil, err
	}
	return pod, w.p.view.waitUntil(ctx, r.ID, func() bool {
		seen := w.p.view.podOf(r.ID)
		return seen != nil && seen.UID == pod.UID && isRunning(seen)
	})
}

// returnPod deletes a claim, and the pod that it had: a guest waits once only.
func (w *warmPool) returnPod(ctx context.Context, pod *corev1.Pod, claim *unstructured.Unstructured) error {
	err := ignoreGone(w.claims.Delete(ctx, claim.GetName(), deleteNow(claim.GetUID())))
	if pod != nil {
		err = errors.Join(err, w.p.deletePod(ctx, pod))
	}
	return err
}

// dropClaim deletes the claim of a sandbox, with which goes what it has been given.
func (w *warmPool) dropClaim(ctx context.Context, id string) error {
	return ignoreGone(w.claims.Delete(ctx, w.p.names.warmClaimName(id), deleteNow("")))
}

// configureGuest tells the guest of a pod, which waits for it, whose it is.
func (p *Provider) configureGuest(ctx context.Context, pod *corev1.Pod, config string) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := p.execGuest(ctx, pod, "tell")
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write([]byte(config)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn) // nothing, to the end of the program
	if err := cmp.Or(ctx.Err(), err, conn.stderrError()); err != nil {
		return atoll.Errorf("start", "", atoll.ErrUnavailable, "the guest of pod %s cannot be told whose it is: %w", pod.Name, err)
	}
	return nil
}
