package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
)

// discoverMaker returns the podMaker to use: that of agent-sandbox if the options ask for it
// and the cluster has it.
func (p *Provider) discoverMaker(ctx context.Context) (podMaker, error) {
	wish, plain := p.opts.AgentSandbox, directMaker{p}
	if wish == AgentSandboxOff {
		return plain, nil
	}
	version, err := p.agentVersion(ctx)
	if err != nil {
		return nil, err
	}
	if version == "" && wish == AgentSandboxOn {
		return missingMaker{plain, errNoAgentSandbox}, nil
	}
	if version != "" && wish == AgentSandboxAuto {
		missing, err := p.missingPermission(ctx, agentPermissions)
		if err != nil {
			return nil, err
		}
		if missing != "" {
			p.opts.Log.Info("agent-sandbox not used: the account may not "+missing, "namespace", p.opts.Namespace)
			return plain, nil
		}
	}
	if version == "" {
		return plain, nil
	}
	return newAgentMaker(p, version)
}

// errNoAgentSandbox reports that agent-sandbox is required and not installed.
var errNoAgentSandbox = atoll.Errorf("start", "kubernetes", atoll.ErrUnavailable,
	"kubernetes.agent_sandbox is on, and the cluster does not serve sandboxes.%s: install agent-sandbox (https://agent-sandbox.sigs.k8s.io) and restart this program, or set it to auto or off", agentGroup)

// agentVersion returns the version of agent-sandbox's API to use; "" if the cluster serves
// none.
func (p *Provider) agentVersion(ctx context.Context) (string, error) {
	for _, version := range agentVersions {
		if served, err := p.servesKinds(ctx, agentGroup, version, "sandboxes"); served || err != nil {
			return version, err
		}
	}
	return "", nil
}

// errNoWarmPools reports that agent-sandbox is installed without the extensions that keep pods
// warm.
var errNoWarmPools = errors.New("the cluster does not serve " + warmVersion + " of " + warmGroup + ": install the extensions of agent-sandbox")

// servesKinds reports whether the API server serves all of those kinds.
func (p *Provider) servesKinds(ctx context.Context, group, version string, kinds ...string) (bool, error) {
	text, err := p.api.core.RESTClient().Get().AbsPath("/apis", group, version).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	var list metav1.APIResourceList
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	for _, kind := range kinds {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == kind }) {
			return false, err
		}
	}
	return err == nil, err
}

// agentPermissions lists the permissions that the account needs in addition if agent-sandbox
// creates pods. They are those of deploy/kubernetes/components/agent-sandbox.
var agentPermissions = slices.Concat(
	permissions(agentGroup, "sandboxes", "create", "delete", "list", "patch", "watch"),
	permissions("", "pods", "patch"),
	permissions(warmGroup, "sandboxclaims", "create", "delete", "list", "watch"),
	permissions(warmGroup, "sandboxtemplates", "create", "delete", "patch"),
	permissions(warmGroup, "sandboxwarmpools", "create", "delete", "patch"),
)

// agentVersionInUse returns the API version of agent-sandbox if that creates pods, and "" if
// not. It returns an error if agent-sandbox is required and not installed.
func (p *Provider) agentVersionInUse(ctx context.Context) (version string, err error) {
	m, err := p.discoverMaker(ctx)
	switch m := m.(type) {
	case *agentMaker:
		return m.version, err
	case missingMaker:
		return "", m.err
	}
	return "", err
}
