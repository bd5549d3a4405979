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

// discover finds out who makes pods: agent-sandbox, where the cluster has it and that is
// wished for.
func (p *Provider) discover(ctx context.Context) (maker, error) {
	wish, plain := p.opts.AgentSandbox, direct{p}
	if wish == AgentSandboxOff {
		return plain, nil
	}
	version, err := p.agentVersion(ctx)
	if err != nil {
		return nil, err
	}
	if version == "" && wish == AgentSandboxOn {
		return absent{plain, errNoAgents}, nil
	}
	if version != "" && wish == AgentSandboxAuto {
		missing, err := p.lacks(ctx, neededAgents)
		if err != nil {
			return nil, err
		}
		if missing != "" {
			p.opts.Log.Info("agent-sandbox is not used, as the account may not "+missing, "namespace", p.opts.Namespace)
			return plain, nil
		}
	}
	if version == "" {
		return plain, nil
	}
	return newAgents(p, version)
}

// errNoAgents says that there is no agent-sandbox where it is to be used.
var errNoAgents = atoll.Errorf("start", "kubernetes", atoll.ErrUnavailable,
	"kubernetes.agent_sandbox is on, and the cluster does not serve sandboxes.%s: install agent-sandbox (https://agent-sandbox.sigs.k8s.io) and start this program again, or set it to auto or off", agentGroup)

// agentVersion is the version of agent-sandbox's API to use; "" if the cluster serves none.
func (p *Provider) agentVersion(ctx context.Context) (string, error) {
	for _, version := range agentVersions {
		if served, err := p.serves(ctx, agentGroup, version, "sandboxes"); served || err != nil {
			return version, err
		}
	}
	return "", nil
}

// errNoWarm says that agent-sandbox is there without what keeps pods warm.
var errNoWarm = errors.New("the cluster does not serve " + warmVersion + " of " + warmGroup + ": install the extensions of agent-sandbox")

// serves reports whether the API server serves all of those kinds.
func (p *Provider) serves(ctx context.Context, group, version string, kinds ...string) (bool, error) {
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

// neededAgents is what the account has to be allowed besides, to have pods made by
// agent-sandbox: deploy/kubernetes/components/agent-sandbox.
var neededAgents = slices.Concat(
	verbs(agentGroup, "sandboxes", "create", "delete", "list", "patch", "watch"),
	verbs("", "pods", "patch"),
	verbs(warmGroup, "sandboxclaims", "create", "delete", "list", "watch"),
	verbs(warmGroup, "sandboxtemplates", "create", "delete", "patch"),
	verbs(warmGroup, "sandboxwarmpools", "create", "delete", "patch"),
)

// usesAgents reports whether agent-sandbox makes pods, and why not where it is to.
func (p *Provider) usesAgents(ctx context.Context) (version string, err error) {
	m, err := p.discover(ctx)
	switch m := m.(type) {
	case *agents:
		return m.version, err
	case absent:
		return "", m.err
	}
	return "", err
}
