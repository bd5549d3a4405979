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
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// The API of agent-sandbox that keeps pods warm. Its older version is not used, because that
// has changed from release to release.
const (
	warmGroup   = "extensions.agents.x-k8s.io"
	warmVersion = "v1beta1"
)

var warmKinds = []string{"sandboxclaims", "sandboxtemplates", "sandboxwarmpools"}

// warmTimeout bounds the wait for a warm pod. After that, a sandbox gets a pod of its own.
const warmTimeout = 3 * time.Second

// A warmPool is a SandboxWarmPool: pods whose guests wait for their configuration. A sandbox
// can take one if its own pod would differ only in the guest's configuration.
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
	plain := &record{Object: objects{record: &corev1.ConfigMap{}}}
	plain.Note.Spec = atoll.Spec{ID: atoll.NewID(), Project: atoll.DefaultProject, Workdir: atoll.DefaultWorkdir, Resources: p.opts.WarmResources}
	pod, err := p.buildPod(plain)
	if err != nil {
		return nil, err
	}
	w.podSpec = waitingSpec(pod)
	return w, nil
}

// waitingSpec returns the spec of the pod with a guest that waits for its configuration.
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

// fitsPod reports whether a warm pod can replace the pod of a sandbox.
func (w *warmPool) fitsPod(pod *corev1.Pod) bool {
	return equality.Semantic.DeepEqual(w.podSpec, waitingSpec(pod))
}

// configurePool makes the cluster keep that many warm pods, or none.
func (w *warmPool) configurePool(ctx context.Context, pods int) error {
	name := w.p.names.warmPoolName()
	if pods == 0 {
		return errors.Join(ignoreGone(w.pools.Delete(ctx, name, deleteNow(""))), ignoreGone(w.templates.Delete(ctx, name, deleteNow(""))))
	}
	var template struct {
		PodTemplate             agentTemplate `json:"podTemplate"`
		Service                 bool          `json:"service"`
		NetworkPolicy           struct{}      `json:"networkPolicy"` // which allows nothing; the policy of a sandbox adds to it
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

// poolLabels returns the labels of pods that no sandbox has yet.
func (w *warmPool) poolLabels() map[string]string {
	return map[string]string{labelManaged: "atoll", labelOwner: string(w.p.names)}
}

// applyObject creates an object, or overwrites it even if another program has created it.
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

// A warmClaim is a SandboxClaim, with the fields that this package uses.
type warmClaim struct {
	Status struct {
		Sandbox struct {
			Name string `json:"name"`
		} `json:"sandbox"`
	} `json:"status"`
}

// takePod takes a warm pod and configures its guest. It returns nil if there is no warm pod;
// nothing is left of the attempt then.
func (w *warmPool) takePod(ctx context.Context, r *record) (pod *corev1.Pod, err error) {
	config, err := w.p.guestConfig(&r.Note.Spec)
	if err != nil {
		return nil, err
	}
	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": warmGroup + "/" + warmVersion, "kind": "SandboxClaim",
		"spec": map[string]any{"warmPoolRef": map[string]any{"name": w.p.names.warmPoolName()}},
	}}
	claim.SetName(w.p.names.warmClaimName(r.ID))
	claim.SetLabels(w.p.names.sandboxLabels(roleSandbox, &r.Note.Spec))
	claim.SetOwnerReferences(ownedBy(r))
	err = remote.RunToEnd(ctx, func(ctx context.Context) (err error) {
		claim, err = w.claims.Create(ctx, claim, createOptions)
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil, nil // of a sandbox with this id that is just being removed
	}
	if err != nil {
		return nil, err
	}
	told := false
	wait, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	if pod, err = w.awaitPod(wait, r, claim); err == nil {
		told = true // perhaps
		err = w.p.configureGuest(ctx, pod, config)
	}
	if err == nil {
		return pod, nil
	}
	left := remote.RunCleanup(func(ctx context.Context) error { return w.returnPod(ctx, pod, claim) })
	if !told && wait.Err() != nil && ctx.Err() == nil || errors.Is(err, errNoWarmPod) {
		return nil, left
	}
	return nil, errors.Join(err, left)
}

// errNoWarmPod reports that there is no warm pod.
var errNoWarmPod = errors.New("no warm pod")

// awaitPod waits for the pod of a claim, and labels it as the sandbox's. A claim cannot do
// that: it may set only labels of domains that its controller's settings allow.
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
	if name == claim.GetName() { // the controller creates the pod only now
		return nil, errNoWarmPod
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": w.p.names.sandboxLabels(roleSandbox, &r.Note.Spec)}})
	if err != nil {
		return nil, err
	}
	pod, err := w.p.api.core.Pods(r.Object.record.Namespace).Patch(ctx, name, types.MergePatchType, patch, patchOptions)
	if apierrors.IsNotFound(err) {
		return nil, errNoWarmPod // the controller is replacing the pod
	}
	if err != nil {
		return nil, err
	}
	return pod, w.p.view.waitUntil(ctx, r.ID, func() bool {
		seen := w.p.view.podOf(r.ID)
		return seen != nil && seen.UID == pod.UID && isRunning(seen)
	})
}

// returnPod deletes a claim and its pod: a guest takes only one configuration.
func (w *warmPool) returnPod(ctx context.Context, pod *corev1.Pod, claim *unstructured.Unstructured) error {
	err := ignoreGone(w.claims.Delete(ctx, claim.GetName(), deleteNow(claim.GetUID())))
	if pod != nil {
		err = errors.Join(err, w.p.deletePod(ctx, pod))
	}
	return err
}

// dropClaim deletes the claim of a sandbox, and with it the pod that it got.
func (w *warmPool) dropClaim(ctx context.Context, id string) error {
	return ignoreGone(w.claims.Delete(ctx, w.p.names.warmClaimName(id), deleteNow("")))
}

// configureGuest sends the configuration of a sandbox to the waiting guest of a pod.
func (p *Provider) configureGuest(ctx context.Context, pod *corev1.Pod, config string) error {
	ctx, cancel := context.WithTimeout(ctx, remote.ConnectTimeout)
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
	_, err = io.Copy(io.Discard, conn) // expect no output until the program ends
	if err := cmp.Or(ctx.Err(), err, conn.stderrError()); err != nil {
		return atoll.Errorf("start", "", atoll.ErrUnavailable, "configure the guest of pod %s: %w", pod.Name, err)
	}
	return nil
}
