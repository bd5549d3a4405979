package kubernetes

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec, err := spec.MadeBy("kubernetes")
	if err != nil {
		return nil, err
	}
	if err := p.checkSupport(spec); err != nil {
		return nil, err
	}
	if err := volume.Mountable(spec); err != nil {
		return nil, err
	}
	if err := p.view.open(ctx, "create"); err != nil {
		return nil, err
	}
	release, err := p.locks.Lock(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	c := &creation{p: p, spec: spec}
	if err := c.runSteps(ctx); err != nil {
		c.undoSteps()
		return nil, p.wrapError(ctx, "create", spec.ID, err)
	}
	p.sweeper.Rouse() // it may have an expiry
	return p.newHandle(spec.ID), nil
}

// checkSupport returns an error if the provider does not support what the spec asks for. Kinds:
// ErrUnsupported.
func (p *Provider) checkSupport(spec *atoll.Spec) error {
	caps, r := p.opts.caps(), spec.Resources
	for _, wish := range []struct {
		asked bool
		what  string
	}{
		{spec.User != "" && !caps.Users, "users other than its own with the profile " + string(p.opts.Profile) + ": set kubernetes.profile to " + string(Baseline)},
		{(spec.Network.Mode == atoll.NetworkOn || spec.Network.Mode == atoll.NetworkEgress) && !p.opts.Enforced, "network mode " + string(spec.Network.Mode) +
			", because the cluster's network does not enforce NetworkPolicies, as far as is known: see atoll doctor"},
		{spec.Network.Mode == atoll.NetworkNamed, "networks by name"},
		{spec.Publishes(), "published ports"},
		{hasMount(spec, atoll.MountBind), "bind mounts: a pod may run on any node"},
		{hasMount(spec, atoll.MountVolume) && p.opts.Ephemeral, "volumes, as kubernetes.ephemeral is set"},
		{spec.Cache, "a cache"},
		{spec.Snapshot != "", "a snapshot"},
		{spec.Workspace != (atoll.WorkspaceRef{}), "a workspace"},
		{r.Disk > 0, "a disk limit"},
		{r.Processes > 0, "a process limit: it is the node's to set (podPidsLimit)"},
	} {
		if wish.asked {
			return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "the kubernetes provider has no support for %s", wish.what)
		}
	}
	return checkAllowList(spec)
}

func hasMount(spec *atoll.Spec, kind atoll.MountType) bool {
	for _, m := range spec.Mounts {
		if m.Type == kind {
			return true
		}
	}
	return false
}

// userAndGroup returns UID:GID of a user whose group has the same number.
func userAndGroup(user int64) string {
	n := strconv.FormatInt(user, 10)
	return n + ":" + n
}

// A creation is the creation of one sandbox. If it fails, undoSteps deletes what it has created
// so far.
type creation struct {
	p      *Provider
	spec   *atoll.Spec
	r      *record  // once it exists
	claims []string // that this creation made
}

func (c *creation) runSteps(ctx context.Context) error {
	err := steps.Take(ctx, c.p.opts.step,
		steps.Step{Name: "namespace", Do: func(ctx context.Context) error { return c.p.ensureNamespace(ctx, c.spec.Project) }},
		steps.Step{Name: "record", Do: c.writeRecord},
	)
	if err != nil {
		return err
	}
	stop := c.p.keepLease(ctx, c.r, func(*note) error { return nil })
	err = steps.Take(ctx, c.p.opts.step,
		steps.Step{Name: "name", Do: c.claimName},
		steps.Step{Name: "data volume", Do: c.createDataVolume},
		steps.Step{Name: "volumes", Do: c.createVolumes},
		steps.Step{Name: "network", Do: func(ctx context.Context) error { return c.p.createPolicy(ctx, c.r) }},
		steps.Step{Name: "start", Do: c.startSandbox},
	)
	stop()
	if err != nil {
		return err
	}
	return steps.Take(ctx, c.p.opts.step, steps.Step{Name: "made", Do: c.finishRecord})
}

// cleanupTimeout bounds work that must be done even if the caller has gone.
const cleanupTimeout = 30 * time.Second

// runToEnd calls do with a ctx that outlasts the caller's: the API server may do what its
// client no longer waits for, and then nobody would know of it.
func runToEnd(ctx context.Context, do func(context.Context) error) error {
	return steps.Settle(ctx, cleanupTimeout, do)
}

// undoSteps deletes what the creation has made, last things first.
func (c *creation) undoSteps() {
	if c.r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := c.p.dropSandbox(ctx, c.r); err != nil {
		c.p.opts.Log.Error("create: undo", "sandbox", c.spec.ID, "err", err)
	}
	for i := len(c.claims) - 1; i >= 0; i-- {
		if c.claims[i] != c.p.names.dataVolumeName(c.spec.ID) && c.p.isMounted(c.r.object.Namespace, c.claims[i]) {
			continue // another sandbox uses it now
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: c.claims[i], Namespace: c.r.object.Namespace}}
		if c.claims[i] == c.p.names.dataVolumeName(c.spec.ID) {
			claim.Labels = c.p.names.sandboxLabels(roleVolume, c.spec)
		}
		if err := c.p.dropClaim(ctx, claim); err != nil {
			c.p.opts.Log.Error("create: undo", "volume", c.claims[i], "err", err)
		}
	}
}

// leaseTTL is the time after which a creation or a start counts as abandoned, unless keepLease
// renews its lease.
const leaseTTL = 30 * time.Second

// writeRecord creates the record of a sandbox that is being created. Kinds: ErrAlreadyExists.
func (c *creation) writeRecord(ctx context.Context) error {
	ns := c.p.namespaceOf(c.spec.Project)
	now := time.Now()
	n := note{Spec: *c.spec, State: atoll.StateCreating, LeaseExpires: now.Add(leaseTTL), Volume: !c.p.opts.Ephemeral}
	if c.spec.TTL > 0 {
		n.Expires = now.Add(time.Duration(c.spec.TTL))
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: c.p.names.sandboxName(c.spec.ID), Labels: c.p.names.sandboxLabels(roleSandbox, c.spec),
		Annotations: map[string]string{annotationCreated: now.UTC().Format(time.RFC3339Nano)},
	}}
	if err := n.encodeInto(object); err != nil {
		return err
	}
	if err := c.clearAbandoned(ctx); err != nil {
		return err
	}
	return runToEnd(ctx, func(ctx context.Context) error {
		written, err := c.p.api.core.ConfigMaps(ns).Create(ctx, object, createOptions)
		if apierrors.IsAlreadyExists(err) {
			return c.idTaken()
		}
		if err != nil {
			return c.createError(err)
		}
		c.r = &record{Status: atoll.Status{ID: c.spec.ID}, note: n, object: written}
		return c.p.view.awaitRecordSeen(ctx, written)
	})
}

func (c *creation) idTaken() error {
	return atoll.Errorf("create", c.spec.ID, atoll.ErrAlreadyExists, "a sandbox with this id already exists")
}

// createError returns the error for an object that the API server did not create.
func (c *creation) createError(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return atoll.Errorf("create", c.spec.ID, atoll.ErrUnavailable, "namespace %s not found: run kubectl create namespace %[1]s", c.p.namespaceOf(c.spec.Project))
	case isQuota(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return atoll.E("create", c.spec.ID, kindOf(err), err)
	case apierrors.IsForbidden(err):
		return atoll.Errorf("create", c.spec.ID, atoll.ErrUnavailable, "the cluster does not allow its objects: %w", err)
	}
	return err
}

// clearAbandoned returns an error if a sandbox has this id. It removes the remains of an
// abandoned creation.
func (c *creation) clearAbandoned(ctx context.Context) error {
	r, err := c.p.findRecord(ctx, "create", c.spec.ID)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !r.isAbandoned(time.Now()) {
		return c.idTaken()
	}
	return c.p.dropSandbox(ctx, r)
}

// isAbandoned reports whether the creation of the sandbox was abandoned.
func (r *record) isAbandoned(now time.Time) bool {
	return r.note.State == atoll.StateCreating && now.After(r.note.LeaseExpires)
}

// claimName takes the sandbox's name. If another sandbox has it, the error names that one.
func (c *creation) claimName(ctx context.Context) error {
	if c.spec.Name == "" {
		return nil
	}
	maps := c.p.api.core.ConfigMaps(c.r.object.Namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: c.p.names.nameRecordName(c.spec.Project, c.spec.Name), Labels: c.p.names.sandboxLabels(roleName, c.spec), OwnerReferences: ownedBy(c.r),
	}}
	for range 3 {
		err := runToEnd(ctx, func(ctx context.Context) error {
			_, err := maps.Create(ctx, object, createOptions)
			return err
		})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		held, err := maps.Get(ctx, object.Name, getOptions)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		owner := held.Labels[labelSession]
		r, err := c.p.findRecord(ctx, "create", owner)
		if err == nil && len(held.OwnerReferences) == 1 && held.OwnerReferences[0].UID == r.object.UID && !r.isAbandoned(time.Now()) {
			return atoll.Errorf("create", c.spec.Name, atoll.ErrAlreadyExists, "sandbox %s already has the name", owner)
		}
		if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
			return err
		}
		if err := ignoreGone(maps.Delete(ctx, held.Name, deleteNow(held.UID))); err != nil { // its sandbox no longer exists
			return err
		}
	}
	return atoll.Errorf("create", c.spec.Name, atoll.ErrAlreadyExists, "other programs take the name, too: try again")
}

func (c *creation) createDataVolume(ctx context.Context) error {
	if c.p.opts.Ephemeral {
		return nil
	}
	for _, left := range objectsOf[*corev1.PersistentVolumeClaim](c.p.view.claimCache, c.spec.ID) {
		if project := claimAnnotation(left, annotationProject); project != c.spec.Project && left.DeletionTimestamp == nil {
			return c.otherProjectError(project) // even if that project has a namespace of its own: an id has one data volume
		}
	}
	l := c.p.names.sandboxLabels(roleVolume, c.spec)
	return c.createClaim(ctx, c.p.names.dataVolumeName(c.spec.ID), l, "")
}

func (c *creation) createVolumes(ctx context.Context) error {
	for _, m := range c.spec.Mounts {
		if m.Type != atoll.MountVolume {
			continue
		}
		l := c.p.names.projectLabels(roleVolume, c.spec.Project)
		l[labelVolume] = labelValue(m.Source)
		if err := c.createClaim(ctx, c.p.names.volumeName(c.spec.Project, m.Source), l, m.Source); err != nil {
			return err
		}
	}
	return nil
}

// startSandbox starts the sandbox, unless the spec says NoStart.
func (c *creation) startSandbox(ctx context.Context) error {
	if c.spec.NoStart {
		return nil
	}
	return c.p.launchSandbox(ctx, c.r)
}

// keepLease renews the lease of a creation or a start until stop is called, because pulling an
// image may take minutes. It does not renew if mine returns an error.
func (p *Provider) keepLease(ctx context.Context, r *record, mine func(*note) error) (stop func()) {
	of := *r
	return guestproc.Every(ctx, leaseTTL/3, func(ctx context.Context) {
		err := p.updateRecord(ctx, &of, func(_ *corev1.ConfigMap, n *note) error {
			n.LeaseExpires = time.Now().Add(leaseTTL)
			return mine(n)
		})
		if err != nil && !errors.Is(err, errDoneElsewhere) && ctx.Err() == nil {
			p.opts.Log.Warn("cannot renew the lease of a creation or a start", "sandbox", of.ID, "err", err)
		}
	})
}

// finishRecord records that the creation is complete.
func (c *creation) finishRecord(ctx context.Context) error {
	return runToEnd(ctx, func(ctx context.Context) error {
		return c.p.updateRecord(ctx, c.r, func(_ *corev1.ConfigMap, n *note) error {
			if n.State != atoll.StateCreating {
				return nil
			}
			n.LeaseExpires = time.Time{}
			if n.State = atoll.StateCreated; !c.spec.NoStart {
				n.markRunning(c.r)
			}
			return nil
		})
	})
}

// markRunning records that a run of the sandbox has begun.
func (n *note) markRunning(r *record) {
	*n = note{
		Spec: n.Spec, Expires: n.Expires, Volume: n.Volume,
		State: atoll.StateRunning, Pod: r.note.Pod, Started: time.Now(), Image: n.Image,
	}
}

// podError returns the error for a pod that the API server did not create.
func (p *Provider) podError(r *record, err error) error {
	if apierrors.IsForbidden(err) && !isQuota(err) {
		return atoll.Errorf("create", r.ID, atoll.ErrUnavailable, "the cluster does not allow its pod: %w", err)
	}
	if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "image") {
		return atoll.E("create", r.ID, atoll.ErrInvalid, err)
	}
	return err
}
