package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// Enforces reports whether the cluster's network enforces NetworkPolicies. The first call tries
// it, which takes some seconds, and records the result in the cluster for all programs that
// share it: of two pods that try to reach the API server, a policy isolates one. If neither pod
// reaches it, the result is unknown, and Enforces records nothing. Kinds: those of New,
// ErrUnavailable, ErrDenied.
func Enforces(ctx context.Context, opts Options) (bool, error) {
	p, err := New(opts)
	if err != nil {
		return false, err
	}
	defer p.Close()
	maps, name := p.api.core.ConfigMaps(opts.Namespace), p.names.clusterNoteName()
	noted, err := maps.Get(ctx, name, getOptions)
	if err == nil {
		return noted.Data[keyPolicies] == enforced, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, p.wrapError(ctx, "probe", "", err)
	}
	var without, with bool
	var both errgroup.Group
	both.Go(func() (err error) { without, err = p.canReachAPI(ctx, false); return err })
	both.Go(func() (err error) { with, err = p.canReachAPI(ctx, true); return err })
	if err := both.Wait(); err != nil {
		return false, err
	}
	if !without {
		return false, atoll.Errorf("probe", "kubernetes", atoll.ErrUnavailable, "a pod without a policy cannot reach the API server, so the effect of a policy is unknown")
	}
	value := ignored
	if !with {
		value = enforced
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: p.names.projectLabels(roleProbe, "")},
		Data:       map[string]string{keyPolicies: value},
	}, createOptions)
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return value == enforced, p.wrapError(ctx, "probe", "", err)
}

// The key and the values of the record about a cluster.
const (
	keyPolicies = "network-policies"
	enforced    = "enforced"
	ignored     = "ignored"
)

// canReachAPI reports whether a pod can reach the API server, with a policy that allows nothing
// or without a policy.
func (p *Provider) canReachAPI(ctx context.Context, shut bool) (bool, error) {
	id := atoll.NewID()
	spec := &atoll.Spec{ID: id, Project: atoll.DefaultProject}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.names.probeName(id), Labels: p.names.sandboxLabels(roleProbe, spec)}, Spec: p.podSpec(spec)}
	last := int64((p.opts.Patience + time.Minute).Seconds()) // if this program ends before the pod does
	pod.Spec.ActiveDeadlineSeconds = &last
	c := &pod.Spec.Containers[0]
	c.Lifecycle, c.Command = nil, []string{guestProgram, "reach", "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"}
	pods := p.api.core.Pods(p.opts.Namespace)
	var made *corev1.Pod
	err := remote.RunToEnd(ctx, func(ctx context.Context) (err error) {
		made, err = pods.Create(ctx, pod, createOptions)
		return err
	})
	if err != nil {
		return false, p.wrapError(ctx, "probe", "", p.podError("", err))
	}
	defer func() {
		if err := remote.RunCleanup(func(ctx context.Context) error { return p.deletePod(ctx, made) }); err != nil {
			p.opts.Log.Warn("probe", "pod", made.Name, "err", err)
		}
	}()
	if shut {
		_, err := p.api.net.NetworkPolicies(p.opts.Namespace).Create(ctx, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: made.Name, Labels: p.names.sandboxLabels(roleProbe, spec), OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: made.Name, UID: made.UID},
			}},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelSession: id}},
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			},
		}, createOptions)
		if err != nil {
			return false, p.wrapError(ctx, "probe", "", err)
		}
		defer func() { // if nothing collects the garbage of a deleted pod
			_ = remote.RunCleanup(func(ctx context.Context) error {
				return ignoreGone(p.api.net.NetworkPolicies(p.opts.Namespace).Delete(ctx, made.Name, deleteNow("")))
			})
		}()
	}
	return p.awaitProbe(ctx, made)
}

// awaitProbe waits for the end of a pod that tries to connect, and reports whether it could.
func (p *Provider) awaitProbe(ctx context.Context, pod *corev1.Pod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.Patience)
	defer cancel()
	w, err := p.api.core.Pods(pod.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String(), ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		return false, p.wrapError(ctx, "probe", "", err)
	}
	defer w.Stop()
	var last *startBlocker
	for ev := range w.ResultChan() {
		now, ok := ev.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		switch now.Status.Phase {
		case corev1.PodSucceeded:
			return true, nil
		case corev1.PodFailed:
			if failedToConnect(now) {
				return false, nil
			}
			why := strings.TrimSpace(now.Status.Reason + " " + now.Status.Message)
			return false, probeError(pod, errors.New(cmp.Or(why, "it was killed")))
		}
		if last = findBlocker(now); last != nil && last.final {
			break
		}
	}
	err = errors.New("it did not end in time")
	if last != nil {
		err = errors.New(last.text)
	}
	return false, probeError(pod, err)
}

func probeError(pod *corev1.Pod, err error) error {
	return atoll.Errorf("probe", "kubernetes", atoll.ErrUnavailable, "check whether NetworkPolicies are enforced: pod %s: %w", pod.Name, err)
}

// exitUnreachable is the exit code of the guest's program if it cannot connect.
const exitUnreachable = 1

// failedToConnect reports whether a failed pod failed because it could not connect, and not for
// a reason that says nothing about the network.
func failedToConnect(pod *corev1.Pod) bool {
	c := statusOf(pod, guestContainer)
	return pod.Status.Reason == "" && c != nil && c.State.Terminated != nil && c.State.Terminated.Reason == "Error" && c.State.Terminated.ExitCode == exitUnreachable
}

// Place implements plugin.Placer. It calls the function Place.
func (p *Provider) Place(ctx context.Context) (string, error) { return Place(ctx, p.opts) }

// Place returns a name for the namespace and its contents. It is the same for all clients,
// however they reach the cluster: it has the uid of a ConfigMap that Kubernetes puts into each
// namespace. Kinds: ErrUnavailable, ErrDenied.
func Place(ctx context.Context, opts Options) (string, error) {
	opts.setDefaults()
	client, err := newAPI(opts.Config)
	if err != nil {
		return "", atoll.E("open", "kubernetes", atoll.ErrInvalid, err)
	}
	defer client.close()
	namespace := opts.Namespace
	if opts.PerProject {
		namespace = metav1.NamespaceDefault
	}
	root, err := client.core.ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", getOptions)
	if err != nil {
		return "", atoll.E("open", "kubernetes", kindOf(err), err)
	}
	return "kubernetes:" + string(root.UID) + "/" + opts.Namespace + "/" + opts.Prefix, nil
}
