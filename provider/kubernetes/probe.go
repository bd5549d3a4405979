package kubernetes

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/seed46cd37a8/atoll"
)

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe {
	if err := p.api.pingServer(ctx); err != nil {
		return atoll.Probe{Reason: p.String() + " does not answer: " + err.Error(), Fix: "set kubernetes.kubeconfig or KUBECONFIG, and try kubectl get pods"}
	}
	version, err := p.agentVersionInUse(ctx)
	if err != nil {
		return atoll.Probe{Reason: err.Error()}
	}
	for _, need := range p.requiredPermissions(version != "") {
		missing, err := p.missingPermission(ctx, need.verbs)
		if err != nil {
			return atoll.Probe{Reason: err.Error()}
		}
		if missing != "" {
			where := "in namespace " + p.opts.Namespace
			if p.opts.PerProject {
				where = "in all namespaces"
			}
			return atoll.Probe{Reason: "the account may not " + missing + " " + where, Fix: "kubectl apply -f deploy/kubernetes/" + need.role + "/role.yaml, or use another account"}
		}
	}
	var notes []string
	if version != "" {
		notes = append(notes, "agent-sandbox ("+version+") creates the pods: kubectl get sandboxes")
		if served, err := p.servesKinds(ctx, warmGroup, warmVersion, warmKinds...); p.opts.WarmPods > 0 && err == nil && !served {
			notes = append(notes, "kubernetes.warm_pods: "+errNoWarmPools.Error())
		}
	}
	if !p.opts.Enforced {
		notes = append(notes, "the cluster may not enforce NetworkPolicies: a sandbox without a network may have one")
	}
	if p.opts.Ephemeral {
		notes = append(notes, "kubernetes.ephemeral is set: the files of a sandbox are lost with its pod")
	}
	return atoll.Probe{OK: true, Notes: notes}
}

// basePermissions lists the permissions that the account needs. deploy/kubernetes has them as a
// Role.
var basePermissions = slices.Concat(
	permissions("", "pods", "create", "delete", "get", "list", "watch"),
	permissions("", "pods/exec", "create", "get"), // API servers from 1.35 on check create
	permissions("", "pods/log", "get"),
	permissions("", "configmaps", "create", "delete", "get", "list", "update", "watch"),
	permissions("", "persistentvolumeclaims", "create", "delete", "get", "list", "watch"),
	permissions("", "events", "list", "watch"),
	permissions("networking.k8s.io", "networkpolicies", "create", "delete"),
)

// projectPermissions lists the permissions that the account needs in addition if each project
// has a namespace of its own.
var projectPermissions = permissions("", "namespaces", "create", "delete", "get")

func permissions(group, what string, verbs ...string) (list []authorizationv1.ResourceAttributes) {
	resource, sub, _ := strings.Cut(what, "/")
	for _, verb := range verbs {
		list = append(list, authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub})
	}
	return list
}

// A permissionSet is a list of permissions that the account needs, and the path in
// deploy/kubernetes of the role that grants them.
type permissionSet struct {
	verbs []authorizationv1.ResourceAttributes
	role  string
}

// requiredPermissions returns the permissions that the provider needs, with agent-sandbox or
// without.
func (p *Provider) requiredPermissions(agents bool) []permissionSet {
	all := []permissionSet{{basePermissions, "sandboxes"}}
	if p.opts.PerProject {
		all = []permissionSet{{slices.Concat(basePermissions, projectPermissions), "components/namespace-per-project"}}
	}
	if agents {
		all = append(all, permissionSet{agentPermissions, "components/agent-sandbox"})
	}
	return all
}

// missingPermission returns the first of those permissions that the account lacks, as VERB
// RESOURCE; "" if it has all.
func (p *Provider) missingPermission(ctx context.Context, all []authorizationv1.ResourceAttributes) (string, error) {
	client, err := authorizationv1client.NewForConfigAndClient(p.api.config, p.api.client)
	if err != nil {
		return "", err
	}
	namespace := p.opts.Namespace
	if p.opts.PerProject {
		namespace = metav1.NamespaceAll
	}
	for _, want := range all {
		want.Namespace = namespace
		review, err := client.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &want},
		}, createOptions)
		if err != nil {
			return "", err
		}
		if !review.Status.Allowed {
			what := want.Resource
			if want.Subresource != "" {
				what += "/" + want.Subresource
			}
			return want.Verb + " " + what, nil
		}
	}
	return "", nil
}

var _ atoll.Prober = (*Provider)(nil)
