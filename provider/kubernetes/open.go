package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// enforceTimeout bounds the check whether the cluster enforces NetworkPolicies.
const enforceTimeout = 2 * time.Minute

// Open returns the provider for the settings of a configuration, for package plugin. Unless the
// provider is only probed, it may check once whether the cluster enforces NetworkPolicies.
func Open(ctx context.Context, r plugin.Request) (atoll.Provider, error) {
	k := settings.Default()
	err := plugin.DecodeSettings(r.Settings, &k)
	if err != nil {
		return nil, atoll.E("open", "kubernetes", atoll.ErrInvalid, err)
	}
	opts, err := optionsOf(&k)
	if err != nil {
		return nil, err
	}
	opts.WarmResources, opts.Log = atoll.Resources{Memory: r.Resources.Memory, CPUs: r.Resources.CPUs}, r.Log
	if k.NetworkPolicy != settings.Auto || r.Probing {
		return New(*opts)
	}
	ctx, cancel := context.WithTimeout(ctx, enforceTimeout)
	defer cancel()
	opts.Enforced, err = Enforces(ctx, *opts)
	if err != nil { // assume that the cluster does not enforce them
		r.Log.Warn("cannot find out whether the cluster's network enforces NetworkPolicies", "err", err)
	}
	return New(*opts)
}

// optionsOf returns the Options that the settings describe.
func optionsOf(k *settings.Settings) (*Options, error) {
	cluster, namespace, err := findCluster(k)
	if err != nil {
		return nil, err
	}
	tolerations, err := k.ParseTolerations()
	if err != nil {
		return nil, err
	}
	nodes, err := k.ParseNodeSelector()
	return &Options{
		Config: cluster, Namespace: namespace, PerProject: k.PerProject, Prefix: k.Prefix,
		Image: k.Image, GuestImage: k.GuestImage, Pull: k.Pull, PullSecrets: k.PullSecrets,
		Profile: Profile(k.Profile), User: int64(k.User), Runtime: k.RuntimeClass, Requests: k.Requests,
		NodeSelector: nodes, Tolerations: tolerations, ServiceAccount: k.ServiceAccount, GPU: k.GPUResource, Patience: time.Duration(k.Patience),
		AgentSandbox: AgentSandbox(k.AgentSandbox), WarmPods: k.WarmPods,
		Ephemeral: k.Ephemeral, StorageClass: k.StorageClass, VolumeSize: k.VolumeSize, SharedVolumes: k.SharedVolumes,
		Enforced: k.NetworkPolicy == "enforced",
	}, err
}

// findCluster returns the client configuration of the cluster, and the namespace to use.
func findCluster(k *settings.Settings) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Kubeconfig
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.Context})
	config, err := from.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("no cluster configured: set kubernetes.kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, "", atoll.E("open", "kubernetes", atoll.ErrUnavailable, err)
	}
	namespace, _, err := from.Namespace()
	return config, cmp.Or(k.Namespace, namespace), err
}
