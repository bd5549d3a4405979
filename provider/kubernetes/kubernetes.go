// Package kubernetes is a provider whose sandboxes are pods of a Kubernetes cluster. The API
// server stores the state of a sandbox in a ConfigMap, its record. The record owns the
// sandbox's pods and network policies, which are deleted with it; its data volume is a
// PersistentVolumeClaim that outlives both. Any number of programs can share a cluster, and a
// program that dies loses nothing.
//
// The guest comes into a pod with an image of its own, and starts every process of the sandbox.
// The provider talks to it over one exec stream, which carries all requests.
package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
)

// Options select the cluster and configure its sandboxes. Config and GuestImage are required.
type Options struct {
	// Config reaches the API server. New does not change it.
	Config *rest.Config
	// Namespace is the namespace of sandboxes. With PerProject, each project has a namespace
	// whose name begins with it, created on first use.
	Namespace  string
	PerProject bool
	// Prefix begins the names of all objects; empty means "atoll". Servers that share a
	// namespace but not their sandboxes need different prefixes.
	Prefix string

	// Image is the default image of sandboxes; empty means DefaultImage.
	Image string
	// GuestImage has the guest's program, cmd/atoll-guest, as /atoll-guest.
	GuestImage string
	// Pull is the image pull policy: "Always", "Never" or, when empty, "IfNotPresent".
	Pull string
	// PullSecrets name the secrets of the namespace with which nodes pull images.
	PullSecrets []string

	// Profile is the Pod Security Standard of pods; empty means Restricted.
	Profile Profile
	// User is the uid of all processes of a sandbox with Restricted; 0 means DefaultUser.
	User int64
	// Runtime is the RuntimeClass of pods, such as "gvisor" or "kata".
	Runtime string
	// Requests is the fraction of its memory and CPU limits that a sandbox requests; 0 means
	// all of them, and 0.5 puts twice as many on a node.
	Requests float64
	// NodeSelector and Tolerations select the nodes that run pods.
	NodeSelector map[string]string
	Tolerations  []Toleration
	// ServiceAccount is the account of pods, which get no token of it.
	ServiceAccount string
	// GPU is the resource that Spec.Resources.GPUs counts; empty means "nvidia.com/gpu".
	GPU string
	// Patience bounds the wait of a pod for a node; 0 means DefaultPatience.
	Patience time.Duration

	// AgentSandbox selects the creator of pods; empty means AgentSandboxOff.
	AgentSandbox AgentSandbox

	// WarmPods is the number of pods that agent-sandbox keeps ready, for sandboxes with Image
	// and WarmResources and without mounts. It needs Ephemeral, as an existing pod cannot get a
	// volume.
	WarmPods      int
	WarmResources atoll.Resources

	// Ephemeral makes sandboxes without data volumes: their files are lost with their pod.
	Ephemeral bool
	// StorageClass is the class of data volumes; empty means the cluster's default.
	StorageClass string
	// VolumeSize is the size of a data volume; 0 means DefaultVolumeSize.
	VolumeSize atoll.Bytes
	// SharedVolumes makes named volumes for many nodes (ReadWriteMany), if their class supports
	// that; otherwise all sandboxes that share a volume run on one node.
	SharedVolumes bool

	// Enforced says that the cluster's network enforces NetworkPolicies: see Enforces.
	Enforced bool

	// Log receives errors that no call can return; nil discards them.
	Log *slog.Logger

	step func(name string) error // for tests: called before each step of a creation
}

// A Profile is one of the Pod Security Standards.
type Profile string

// The profiles.
const (
	Restricted Profile = "restricted" // one user who is not root, and no capabilities
	Baseline   Profile = "baseline"   // root inside, with the capabilities to act as other users there
)

// A Toleration is a taint of nodes that pods tolerate.
type Toleration = settings.Toleration

// The defaults of Options.
const (
	DefaultImage      = settings.DefaultImage
	DefaultUser       = settings.DefaultUser
	DefaultPatience   = settings.DefaultPatience
	DefaultVolumeSize = settings.DefaultVolumeSize
)

// A Provider is an atoll.Provider.
type Provider struct {
	remote.Provider[objects]

	engine *remote.Engine[objects]
	opts   Options
	names  names
	api    *api
	view   *view
	events *events
	maker  podMaker // set when the view is opened
}

// A creation is the creation of one sandbox.
type creation = remote.Creation[objects]

// New returns a provider of a cluster's sandboxes. It does not connect. Kinds: ErrInvalid.
func New(opts Options) (*Provider, error) {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("open", "kubernetes", atoll.ErrInvalid, format, args...)
	}
	opts.setDefaults()
	switch {
	case opts.Config == nil:
		return nil, bad("no cluster given")
	case opts.Namespace == "":
		return nil, bad("no namespace given")
	case opts.GuestImage == "":
		return nil, bad("no guest image given: set kubernetes.guest_image to an image with the program atoll-guest, such as the server's own")
	case !validPrefix.MatchString(string(opts.Prefix)):
		return nil, bad("prefix %q: use up to 20 lower-case letters, digits and '-', starting with a letter", opts.Prefix)
	case opts.Profile != Restricted && opts.Profile != Baseline:
		return nil, bad("profile %q: use %s or %s", opts.Profile, Restricted, Baseline)
	case !slices.Contains([]string{"Always", "Never", "IfNotPresent"}, opts.Pull):
		return nil, bad("pull %q: use Always, Never or IfNotPresent", opts.Pull)
	case !slices.Contains([]AgentSandbox{AgentSandboxOff, AgentSandboxAuto, AgentSandboxOn}, opts.AgentSandbox):
		return nil, bad("agent_sandbox %q: use %s, %s or %s", opts.AgentSandbox, AgentSandboxOff, AgentSandboxAuto, AgentSandboxOn)
	case opts.WarmPods < 0:
		return nil, bad("warm_pods %d: must not be negative", opts.WarmPods)
	case opts.WarmPods > 0 && (opts.AgentSandbox == AgentSandboxOff || !opts.Ephemeral || opts.PerProject):
		return nil, bad("warm_pods %d: needs agent_sandbox and ephemeral, and no namespace_per_project", opts.WarmPods)
	case opts.Requests <= 0 || opts.Requests > 1:
		return nil, bad("requests %v: must be above 0, and 1 at most", opts.Requests)
	case opts.User < 0:
		return nil, bad("user %d: must be the number of a user other than root", opts.User)
	}
	client, err := newAPI(opts.Config)
	if err != nil {
		return nil, atoll.E("open", "kubernetes", atoll.ErrInvalid, err)
	}
	p := &Provider{opts: opts, names: names(opts.Prefix), api: client}
	p.view = newView(p)
	p.events = newEvents(p)
	p.engine = remote.New(backend{p}, func(s *remote.Sandbox[objects]) atoll.Sandbox { return &sandbox{s, p} }, remote.Config{
		Name: "kubernetes", Ephemeral: opts.Ephemeral, Caches: true, Patience: opts.Patience, ReachTimeout: reachTimeout,
		AnswerTimeout: answerTimeout, LeaseTTL: leaseTTL, Log: opts.Log, Step: opts.step,
	})
	p.Provider = p.engine.Provider()
	p.engine.StartSweeps()
	return p, nil
}

// setDefaults sets the fields that are not set.
func (o *Options) setDefaults() {
	for _, s := range []struct {
		field *string
		value string
	}{{&o.Prefix, "atoll"}, {&o.Image, DefaultImage}, {&o.Pull, "IfNotPresent"}, {&o.GPU, "nvidia.com/gpu"}} {
		if *s.field == "" {
			*s.field = s.value
		}
	}
	if o.Profile == "" {
		o.Profile = Restricted
	}
	if o.AgentSandbox == "" {
		o.AgentSandbox = AgentSandboxOff
	}
	if o.User == 0 {
		o.User = DefaultUser
	}
	if o.Requests == 0 {
		o.Requests = 1
	}
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	if o.VolumeSize == 0 {
		o.VolumeSize = DefaultVolumeSize
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Info implements atoll.Provider.
func (p *Provider) Info() atoll.Info { return p.opts.Info() }

// Info describes a provider with these options.
func (o *Options) Info() atoll.Info {
	isolation := atoll.IsolationContainer
	return atoll.Info{Name: "kubernetes", Isolation: isolation, Caps: o.caps()}
}

func (o *Options) caps() atoll.Caps {
	return atoll.Caps{
		Durable:      atoll.DurableNone,
		Restart:      true,
		Survives:     true,
		Reattach:     true,
		ExitSignal:   true,
		IdleStop:     true,
		Extend:       true,
		TTY:          true,
		Files:        true,
		Dial:         true,
		Images:       true,
		Users:        o.Profile == Baseline,
		Volumes:      !o.Ephemeral,
		Tmpfs:        true,
		ReadOnlyRoot: true,
		MemoryLimit:  true,
		CPULimit:     true,
		NetworkNone:  o.Enforced,
		NetworkOn:    o.Enforced,
		Egress:       o.Enforced,
		GPU:          true,
	}
}

// namespaceOf returns the namespace of a project.
func (p *Provider) namespaceOf(project string) string {
	if !p.opts.PerProject {
		return p.opts.Namespace
	}
	return p.opts.Namespace + "-" + hashWords(project)
}

// leaseTTL is the time after which a creation or a start counts as abandoned, unless its program
// renews the lease.
const leaseTTL = 30 * time.Second

// Close implements atoll.Provider.
func (p *Provider) Close() error {
	if p.engine.Shut(p.events.close) {
		p.view.close()
		p.api.close()
	}
	return nil
}

// wrapError wraps an error of the API server with its kind.
func (p *Provider) wrapError(ctx context.Context, op, id string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case remote.HasKind(err):
		return err
	}
	return atoll.E(op, id, kindOf(err), err)
}

func kindOf(err error) atoll.Kind {
	switch {
	case apierrors.IsNotFound(err):
		return atoll.ErrNotFound
	case isQuota(err), apierrors.IsTooManyRequests(err):
		return atoll.ErrExhausted
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return atoll.ErrDenied
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return atoll.ErrConflict
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return atoll.ErrInvalid
	case apierrors.ReasonForError(err) == "", apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsInternalError(err):
		return atoll.ErrUnavailable // an error without a reason does not come from the API server
	}
	return atoll.ErrInternal
}

// String returns the provider's name for messages.
func (p *Provider) String() string { return fmt.Sprintf("kubernetes at %s", p.opts.Config.Host) }

var (
	_ atoll.Provider = (*Provider)(nil)
	_ atoll.Resolver = (*Provider)(nil)
)
