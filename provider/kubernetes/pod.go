package kubernetes

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// The containers of a pod.
const (
	guestContainer = "guest"   // installs the guest's program, and stays until the other container has ended
	mainContainer  = "sandbox" // the sandbox
)

// The paths in a sandbox's container.
const (
	guestDir    = "/.atoll"
	guestPath   = guestDir + "/guest"
	outcomePath = corev1.TerminationMessagePathDefault // its content appears in the pod's status
)

// guestProgram is the path of the guest in its image.
const guestProgram = "/atoll-guest"

// The names of a pod's volumes; those of its mounts are numbered.
const (
	guestVolume = "guest"
	dataVolume  = "data"
)

// dataPath is the path of the work directory on a data volume: file systems have directories of
// their own at the top.
const dataPath = "work"

// buildPod returns the pod that runs a sandbox.
func (p *Provider) buildPod(r *record) (*corev1.Pod, error) {
	spec := &r.Note.Spec
	config, err := p.guestConfig(spec)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.names.sandboxName(spec.ID), Namespace: r.Object.record.Namespace,
			Labels: p.names.sandboxLabels(roleSandbox, spec), OwnerReferences: ownedBy(r),
		},
		Spec: p.podSpec(spec),
	}
	main := corev1.Container{
		Name: mainContainer, Image: cmp.Or(spec.Image, p.opts.Image),
		Command: []string{guestPath, "init", escapeVariables(config)},
	}
	if err := p.setLimits(&main, spec); err != nil {
		return nil, err
	}
	p.addMounts(pod, &main, spec)
	p.confineContainer(&main, spec.ReadOnlyRoot)
	main.ImagePullPolicy = cmp.Or(pullPolicies[spec.Pull], main.ImagePullPolicy)
	pod.Spec.Containers = append(pod.Spec.Containers, main)
	return pod, nil
}

// pullPolicies are Kubernetes's names of the policies.
var pullPolicies = map[atoll.PullPolicy]corev1.PullPolicy{
	atoll.PullMissing: corev1.PullIfNotPresent, atoll.PullAlways: corev1.PullAlways, atoll.PullNever: corev1.PullNever,
}

// escapeVariables escapes a word so that Kubernetes does not expand $(NAME) in it.
func escapeVariables(word string) string { return strings.ReplaceAll(word, "$", "$$") }

// podSpec returns the common part of all pods, with the container that installs the guest. That
// is the first container; the kubelet starts the second one when the hook of the first is done.
// Init containers would be slower: a node checks only every second whether they have ended.
func (p *Provider) podSpec(spec *atoll.Spec) corev1.PodSpec {
	no, grace := false, int64(10)
	o := &p.opts
	s := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		AutomountServiceAccountToken: &no, EnableServiceLinks: &no, ServiceAccountName: o.ServiceAccount,
		Hostname: podHostname(spec), NodeSelector: o.NodeSelector,
		SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Volumes:         []corev1.Volume{{Name: guestVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}
	if o.Runtime != "" {
		s.RuntimeClassName = &o.Runtime
	}
	for _, t := range o.Tolerations {
		operator := corev1.TolerationOpEqual
		if t.Value == "" {
			operator = corev1.TolerationOpExists
		}
		s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: t.Key, Operator: operator, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	for _, name := range o.PullSecrets {
		s.ImagePullSecrets = append(s.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	root, always := int64(0), corev1.FSGroupChangeOnRootMismatch
	switch o.Profile {
	case Restricted:
		yes := true
		s.SecurityContext.RunAsNonRoot, s.SecurityContext.RunAsUser, s.SecurityContext.RunAsGroup = &yes, &o.User, &o.User
		s.SecurityContext.FSGroup, s.SecurityContext.FSGroupChangePolicy = &o.User, &always
	default:
		s.SecurityContext.RunAsUser, s.SecurityContext.RunAsGroup = &root, &root
	}
	bring := corev1.Container{
		Name: guestContainer, Image: o.GuestImage, ImagePullPolicy: corev1.PullPolicy(o.Pull),
		Command:      []string{guestProgram, "stay", guestDir},
		Lifecycle:    &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{guestProgram, "install", guestDir}}}},
		VolumeMounts: []corev1.VolumeMount{{Name: guestVolume, MountPath: guestDir}},
		Resources:    corev1.ResourceRequirements{Requests: guestRequests, Limits: guestLimits},
	}
	p.confineContainer(&bring, true)
	s.Containers = []corev1.Container{bring}
	return s
}

// The requests and limits of the container that installs the guest: it copies the program,
// while the sandbox waits, and is idle then.
var (
	guestRequests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi"), corev1.ResourceCPU: resource.MustParse("10m")}
	guestLimits   = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi"), corev1.ResourceCPU: resource.MustParse("1")}
)

// guestCaps are the capabilities of a guest that acts as the users of its sandbox. The profile
// baseline allows them, and provider/docker gives the same ones.
var guestCaps = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETPCAP", "SETUID"}

// confineContainer takes from a container everything that the profile does not allow, and more.
func (p *Provider) confineContainer(c *corev1.Container, readOnly bool) {
	no := false
	c.ImagePullPolicy = corev1.PullPolicy(p.opts.Pull)
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &readOnly,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if p.opts.Profile == Baseline {
		c.SecurityContext.Capabilities.Add = guestCaps
	}
}

// guestConfig returns the configuration of a sandbox's guest as JSON.
func (p *Provider) guestConfig(spec *atoll.Spec) (string, error) {
	g := guest.Config{
		ID: spec.ID, Self: guestPath, Workdir: spec.Workdir, User: spec.User, Env: spec.Environ(),
		Cmd: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin, Held: spec.AutoRemove,
		IdleStop: max(cmp.Or(spec.IdleStop, atoll.DefaultIdleStop), 0), Framed: true, Outcome: outcomePath,
	}
	hasHome := slices.ContainsFunc(g.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	if p.opts.Profile == Restricted {
		g.User = userAndGroup(p.opts.User)
		if !hasHome { // images have no home for this user
			g.Env = append([]string{"HOME=" + spec.Workdir}, g.Env...)
			hasHome = true
		}
	}
	g.Home = hasHome
	text, err := json.Marshal(g)
	return string(text), err
}

// setLimits sets the limits and requests of a container.
func (p *Provider) setLimits(c *corev1.Container, spec *atoll.Spec) error {
	limits := corev1.ResourceList{}
	r := spec.Resources.WithDefaults()
	if r.Memory > 0 {
		limits[corev1.ResourceMemory] = *resource.NewQuantity(int64(r.Memory), resource.BinarySI)
	}
	if r.CPUs > 0 {
		limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(max(int64(r.CPUs*1000), 1), resource.DecimalSI)
	}
	c.Resources = corev1.ResourceRequirements{Limits: limits, Requests: corev1.ResourceList{}}
	for name, q := range limits {
		part := q.DeepCopy()
		part.SetMilli(max(int64(float64(q.MilliValue())*p.opts.Requests), 1))
		if name == corev1.ResourceMemory {
			part = *resource.NewQuantity(int64(float64(q.Value())*p.opts.Requests), resource.BinarySI)
		}
		c.Resources.Requests[name] = part
	}
	count, ids, err := r.GPUs.Devices()
	if err != nil {
		return err
	}
	if count < 0 || len(ids) > 0 {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnavailable, "gpus %q: Kubernetes has no device ids; give the number of GPUs", r.GPUs)
	}
	if count > 0 {
		q := *resource.NewQuantity(int64(count), resource.DecimalSI)
		limits[corev1.ResourceName(p.opts.GPU)], c.Resources.Requests[corev1.ResourceName(p.opts.GPU)] = q, q
	}
	return nil
}

// addMounts adds the sandbox's volumes to a container.
func (p *Provider) addMounts(pod *corev1.Pod, c *corev1.Container, spec *atoll.Spec) {
	add := func(name, target, sub string, readOnly bool, source *corev1.VolumeSource) {
		if source != nil {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: *source})
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: target, SubPath: sub, ReadOnly: readOnly})
	}
	add(guestVolume, guestDir, "", false, nil)
	claimed := func(name string) *corev1.VolumeSource {
		return &corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	if p.opts.Ephemeral {
		add(dataVolume, atoll.DefaultWorkdir, "", false, &corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	} else {
		add(dataVolume, atoll.DefaultWorkdir, dataPath, false, claimed(p.names.dataVolumeName(spec.ID)))
	}
	if memory := spec.Resources.WithDefaults().Memory; memory > 0 && !slices.ContainsFunc(spec.Mounts, func(m atoll.Mount) bool { return path.Clean(m.Target) == sharedMemory }) {
		size := resource.NewQuantity(int64(memory/2), resource.BinarySI) // as on Linux; runtimes give 64 MiB
		add("shm", sharedMemory, "", false, &corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: size}})
	}
	mounts := slices.Clone(spec.Mounts)
	slices.SortStableFunc(mounts, func(a, b atoll.Mount) int { return strings.Compare(path.Clean(a.Target), path.Clean(b.Target)) })
	for i, m := range mounts {
		name := "mount-" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		switch m.Type {
		case atoll.MountVolume:
			add(name, m.Target, dataPath, m.ReadOnly, claimed(p.names.volumeName(spec.Project, m.Source)))
		case atoll.MountTmpfs:
			size := resource.NewQuantity(int64(cmp.Or(m.Size, defaultTmpfsSize)), resource.BinarySI)
			add(name, m.Target, "", m.ReadOnly, &corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: size}})
		}
	}
}

// sharedMemory is the directory of POSIX shared memory.
const sharedMemory = "/dev/shm"

// defaultTmpfsSize is the size of a tmpfs if its mount has none.
const defaultTmpfsSize = 64 << 20

// podHostname returns the sandbox's name if it is a valid host name, or else part of its id.
func podHostname(spec *atoll.Spec) string {
	name := strings.ToLower(spec.Name)
	if validHostname.MatchString(name) {
		return name
	}
	return spec.ID[:12]
}
