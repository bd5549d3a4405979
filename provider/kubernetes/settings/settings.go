// Package settings has the settings of the provider kubernetes, without the client of a
// cluster: atoll reads them, and the program atoll-kubernetes uses them.
package settings

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// What is used where nothing is set.
const (
	DefaultImage      = "ubuntu:22.04"
	DefaultUser       = 1000
	DefaultPatience   = 2 * time.Minute // a cluster may have to add a node
	DefaultVolumeSize = 8 << 30
)

// Auto is the NetworkPolicy that is found out by trying.
const Auto = "auto"

// Settings are the settings of the provider kubernetes.
type Settings struct {
	Kubeconfig     string         `yaml:"kubeconfig" form:"path" doc:"file that says which cluster; KUBECONFIG, or kubectl's own, when empty, and in a pod without one its own cluster"`
	Context        string         `yaml:"context" doc:"context of that file; its current one when empty"`
	Namespace      string         `yaml:"namespace" doc:"where pods are made; the context's when empty, and in a pod its own"`
	PerProject     bool           `yaml:"namespace_per_project" doc:"each project has a namespace of its own, whose name begins with namespace; it takes a role for the whole cluster"`
	Prefix         string         `yaml:"prefix" doc:"begins the names of what is made: servers that share a namespace and not their sandboxes have different ones"`
	Image          string         `yaml:"image" doc:"image of sandboxes that name none"`
	GuestImage     string         `yaml:"guest_image" doc:"image with /atoll-guest, such as the server's own: it brings the guest into pods"`
	Pull           string         `yaml:"pull" form:"IfNotPresent Always Never" doc:"when nodes pull images"`
	PullSecrets    []string       `yaml:"pull_secrets" doc:"secrets of the namespace by which nodes pull images"`
	Profile        string         `yaml:"profile" form:"restricted baseline" doc:"Pod Security Standard of pods: restricted has one user, who is not root; baseline has root and other users inside"`
	User           int            `yaml:"user" doc:"number of that one user"`
	RuntimeClass   string         `yaml:"runtime_class" doc:"RuntimeClass of pods, like gvisor or kata; the nodes' default when empty"`
	Requests       float64        `yaml:"requests" doc:"what part of its limits of memory and CPU a pod asks for: with 0.5 twice as many fit on a node"`
	NodeSelector   []string       `yaml:"node_selector" doc:"labels of the nodes that pods run on: KEY=VALUE"`
	Tolerations    []string       `yaml:"tolerations" doc:"taints of nodes that pods tolerate: KEY, KEY=VALUE or KEY=VALUE:EFFECT"`
	ServiceAccount string         `yaml:"service_account" doc:"account of pods, which get no token of it; the namespace's default when empty"`
	GPUResource    string         `yaml:"gpu_resource" doc:"the resource that --gpus counts"`
	Patience       atoll.Duration `yaml:"patience" doc:"how long a pod may wait for a node, like 2m"`
	AgentSandbox   string         `yaml:"agent_sandbox" form:"off auto on" doc:"whether the controller of kubernetes-sigs/agent-sandbox makes pods: on, or, where the cluster has it and the account may use it, auto"`
	WarmPods       int            `yaml:"warm_pods" doc:"how many pods agent-sandbox keeps ready for sandboxes with that image, the limits of resources and no mounts; only with ephemeral"`
	Ephemeral      bool           `yaml:"ephemeral" doc:"make no volumes: what a sandbox has ends with its pod"`
	StorageClass   string         `yaml:"storage_class" doc:"StorageClass of volumes; the cluster's default when empty"`
	VolumeSize     atoll.Bytes    `yaml:"volume_size" doc:"size of a sandbox's volume"`
	SharedVolumes  bool           `yaml:"shared_volumes" doc:"named volumes are for pods on many nodes (ReadWriteMany)"`
	NetworkPolicy  string         `yaml:"network_policy" form:"auto enforced ignored" doc:"whether the cluster's network enforces NetworkPolicies; auto tries it once, and notes it in the cluster"`
}

// Default returns the default settings.
func Default() Settings {
	return Settings{
		Prefix: "atoll", Image: DefaultImage, Pull: "IfNotPresent", Profile: "restricted", User: DefaultUser,
		Requests: 1, GPUResource: "nvidia.com/gpu", Patience: atoll.Duration(DefaultPatience), VolumeSize: DefaultVolumeSize, NetworkPolicy: Auto,
		AgentSandbox: "off",
	}
}

// Check calls bad with the key of each value that makes no sense.
func (k *Settings) Check(bad func(key string, err error)) {
	_, err := k.ParseTolerations()
	bad("kubernetes.tolerations", err)
	_, err = k.ParseNodeSelector()
	bad("kubernetes.node_selector", err)
	if k.Requests <= 0 || k.Requests > 1 {
		bad("kubernetes.requests", fmt.Errorf("%v: must be above 0, and 1 at most", k.Requests))
	}
	if k.User <= 0 {
		bad("kubernetes.user", fmt.Errorf("%d: must be the number of a user other than root", k.User))
	}
	if k.VolumeSize <= 0 {
		bad("kubernetes.volume_size", fmt.Errorf("%s: must be positive", k.VolumeSize))
	}
	if k.Patience <= 0 {
		bad("kubernetes.patience", fmt.Errorf("%s: must be positive", k.Patience))
	}
}

// A Toleration is a taint of nodes that pods tolerate.
type Toleration struct {
	Key, Value, Effect string // an empty Key is all taints; an empty Value is any
}

// ParseNodeSelector returns NodeSelector as a map.
func (k *Settings) ParseNodeSelector() (map[string]string, error) {
	all := map[string]string{}
	for _, text := range k.NodeSelector {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q: write it like KEY=VALUE", text)
		}
		all[key] = value
	}
	return all, nil
}

// ParseTolerations reads Tolerations.
func (k *Settings) ParseTolerations() (list []Toleration, err error) {
	for _, text := range k.Tolerations {
		rest, effect, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(rest, "=")
		switch effect {
		case "", "NoSchedule", "PreferNoSchedule", "NoExecute":
		default:
			return nil, fmt.Errorf("%q: effects are NoSchedule, PreferNoSchedule and NoExecute", text)
		}
		list = append(list, Toleration{Key: key, Value: value, Effect: effect})
	}
	return list, nil
}
