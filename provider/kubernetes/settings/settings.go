// Package settings has the settings of the provider kubernetes. It does not import the client
// of a cluster: atoll reads the settings, and the program atoll-kubernetes uses them.
package settings

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The defaults of settings.
const (
	DefaultImage      = "ubuntu:22.04"
	DefaultUser       = 1000
	DefaultPatience   = 2 * time.Minute // a cluster may have to add a node
	DefaultVolumeSize = 8 << 30
)

// Auto is the value of NetworkPolicy that makes the provider check the cluster.
const Auto = "auto"

// Settings are the settings of the provider kubernetes.
type Settings struct {
	Kubeconfig     string         `yaml:"kubeconfig" form:"path" doc:"kubeconfig file of the cluster; when empty, KUBECONFIG or kubectl's own file, and in a pod without one the pod's cluster"`
	Context        string         `yaml:"context" doc:"context in that file; its current context when empty"`
	Namespace      string         `yaml:"namespace" doc:"namespace of pods; when empty, the context's, and in a pod its own"`
	PerProject     bool           `yaml:"namespace_per_project" doc:"give each project a namespace of its own, whose name begins with namespace; needs a role for the whole cluster"`
	Prefix         string         `yaml:"prefix" doc:"beginning of the names of all objects; servers that share a namespace but not their sandboxes need different ones"`
	Image          string         `yaml:"image" doc:"default image of sandboxes"`
	GuestImage     string         `yaml:"guest_image" doc:"image with /atoll-guest, such as the server's own; it installs the guest in pods"`
	Pull           string         `yaml:"pull" form:"IfNotPresent Always Never" doc:"when nodes pull images"`
	PullSecrets    []string       `yaml:"pull_secrets" doc:"secrets of the namespace with which nodes pull images"`
	Profile        string         `yaml:"profile" form:"restricted baseline" doc:"Pod Security Standard of pods: restricted has one user other than root; baseline has root and other users inside"`
	User           int            `yaml:"user" doc:"number of the one user of the profile restricted"`
	RuntimeClass   string         `yaml:"runtime_class" doc:"RuntimeClass of pods, such as gvisor or kata; the nodes' default when empty"`
	Requests       float64        `yaml:"requests" doc:"fraction of its memory and CPU limits that a pod requests; with 0.5, twice as many fit on a node"`
	NodeSelector   []string       `yaml:"node_selector" doc:"labels of the nodes that run pods: KEY=VALUE"`
	Tolerations    []string       `yaml:"tolerations" doc:"taints of nodes that pods tolerate: KEY, KEY=VALUE or KEY=VALUE:EFFECT"`
	ServiceAccount string         `yaml:"service_account" doc:"service account of pods, which get no token of it; the namespace's default when empty"`
	GPUResource    string         `yaml:"gpu_resource" doc:"resource that --gpus counts"`
	Patience       atoll.Duration `yaml:"patience" doc:"longest wait of a pod for a node, such as 2m"`
	AgentSandbox   string         `yaml:"agent_sandbox" form:"off auto on" doc:"whether the controller of kubernetes-sigs/agent-sandbox creates pods; auto: if the cluster has it and the account may use it"`
	WarmPods       int            `yaml:"warm_pods" doc:"number of pods that agent-sandbox keeps ready, for sandboxes with that image, the limits of resources and no mounts; needs ephemeral"`
	Ephemeral      bool           `yaml:"ephemeral" doc:"create no volumes: the files of a sandbox are lost with its pod"`
	StorageClass   string         `yaml:"storage_class" doc:"StorageClass of volumes; the cluster's default when empty"`
	VolumeSize     atoll.Bytes    `yaml:"volume_size" doc:"size of a sandbox's volume"`
	SharedVolumes  bool           `yaml:"shared_volumes" doc:"create named volumes for pods on many nodes (ReadWriteMany)"`
	NetworkPolicy  string         `yaml:"network_policy" form:"auto enforced ignored" doc:"whether the cluster's network enforces NetworkPolicies; auto tries it once and records the result in the cluster"`
}

// Default returns the default settings.
func Default() Settings {
	return Settings{
		Prefix: "atoll", Image: DefaultImage, Pull: "IfNotPresent", Profile: "restricted", User: DefaultUser,
		Requests: 1, GPUResource: "nvidia.com/gpu", Patience: atoll.Duration(DefaultPatience), VolumeSize: DefaultVolumeSize, NetworkPolicy: Auto,
		AgentSandbox: "off",
	}
}

// Check calls bad with the key of each invalid value and the error, and with a nil error for
// valid ones.
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
	Key, Value, Effect string // an empty Key means all taints; an empty Value means any
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

// ParseTolerations parses Tolerations.
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
