package kubernetes

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// errEnded reports that a pod ended before it was of use.
var errEnded = errors.New("its pod has ended")

// createDataVolume creates the data volume of a sandbox, unless it exists.
func (p *Provider) createDataVolume(ctx context.Context, c *creation) error {
	if p.opts.Ephemeral {
		return nil
	}
	for _, left := range objectsOf[*corev1.PersistentVolumeClaim](p.view.claimCache, c.Spec.ID) {
		if project := claimAnnotation(left, annotationProject); project != c.Spec.Project && left.DeletionTimestamp == nil {
			return otherProjectError(c.Spec.ID, project) // even if that project has a namespace of its own: an id has one data volume
		}
	}
	return p.createClaim(ctx, c, p.names.dataVolumeName(c.Spec.ID), p.names.sandboxLabels(roleVolume, c.Spec), "")
}

// createVolumes creates the named volumes of a sandbox that do not exist.
func (p *Provider) createVolumes(ctx context.Context, c *creation) error {
	for _, m := range c.Spec.Mounts {
		if m.Type != atoll.MountVolume {
			continue
		}
		l := p.names.projectLabels(roleVolume, c.Spec.Project)
		l[labelVolume] = labelValue(m.Source)
		if err := p.createClaim(ctx, c, p.names.volumeName(c.Spec.Project, m.Source), l, m.Source); err != nil {
			return err
		}
	}
	return nil
}

// createClaim creates a volume, unless it exists. If the creation fails, it is deleted, unless
// another sandbox uses it then.
func (p *Provider) createClaim(ctx context.Context, c *creation, name string, labels map[string]string, volume string) error {
	namespace := c.Record.Object.record.Namespace
	claims := p.api.core.PersistentVolumeClaims(namespace)
	found, err := claims.Get(ctx, name, getOptions)
	if err == nil && found.DeletionTimestamp != nil {
		p.awaitDeletion(ctx, found)
		found, err = claims.Get(ctx, name, getOptions)
	}
	if err == nil && found.DeletionTimestamp != nil {
		return atoll.Errorf("create", c.Spec.ID, atoll.ErrConflict, "a volume of this name is being deleted, and something still uses it: kubectl describe pvc %s", name)
	}
	if of := claimAnnotation(found, annotationProject); err == nil && of != c.Spec.Project {
		return otherProjectError(c.Spec.ID, of)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	mode := corev1.ReadWriteOnce
	if volume != "" && p.opts.SharedVolumes {
		mode = corev1.ReadWriteMany
	}
	made := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{annotationProject: c.Spec.Project, annotationVolume: volume}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(p.opts.VolumeSize), resource.BinarySI)}},
		},
	}
	if class := p.opts.StorageClass; class != "" {
		made.Spec.StorageClassName = &class
	}
	return remote.RunToEnd(ctx, func(ctx context.Context) error {
		claim, err := claims.Create(ctx, made, createOptions)
		if apierrors.IsAlreadyExists(err) {
			return nil // another sandbox of the project has just created it
		}
		if err != nil {
			return p.createError(c.Spec, err)
		}
		c.OnUndo(func(ctx context.Context) error {
			if volume != "" && p.isMounted(namespace, name) {
				return nil
			}
			return p.dropClaim(ctx, claim)
		})
		return p.view.awaitClaim(ctx, claim, true)
	})
}

// otherProjectError returns the error for a data volume of another project.
func otherProjectError(id, project string) error {
	return atoll.Errorf("create", id, atoll.ErrConflict, "the data volume of this id belongs to project %s: remove that, or use another id", project)
}

// volumeDeleteTimeout bounds the wait for a deleted volume whose last user has not gone yet.
const volumeDeleteTimeout = 20 * time.Second

// awaitDeletion waits a while for the deletion of a volume.
func (p *Provider) awaitDeletion(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	ctx, cancel := context.WithTimeout(ctx, volumeDeleteTimeout)
	defer cancel()
	_ = p.view.waitUntil(ctx, claim.Labels[labelSession], func() bool { return !p.view.hasClaim(claim) })
}

func claimAnnotation(object *corev1.PersistentVolumeClaim, key string) string {
	if object == nil {
		return ""
	}
	return object.Annotations[key]
}

// CheckDataVolume implements remote.Volumes.
func (b backend) CheckDataVolume(ctx context.Context, r *record) error {
	name := b.names.dataVolumeName(r.ID)
	claim, err := b.api.core.PersistentVolumeClaims(r.Object.record.Namespace).Get(ctx, name, getOptions)
	if apierrors.IsNotFound(err) || err == nil && claim.DeletionTimestamp != nil {
		return remote.LostVolumeError(r.ID, name)
	}
	return err
}

// DropDataVolume implements remote.Volumes.
func (b backend) DropDataVolume(ctx context.Context, id string, r *record) error {
	p, ns := b.Provider, b.opts.Namespace
	switch {
	case r != nil:
		ns = r.Object.record.Namespace
	case p.opts.PerProject: // it may be in any namespace
		ns = metav1.NamespaceAll
	}
	found, err := p.api.core.PersistentVolumeClaims(ns).List(ctx, p.names.selectOwn(labelRole, roleVolume, labelSession, id))
	if err != nil {
		return err
	}
	for i := range found.Items {
		if err := p.dropClaim(ctx, &found.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// dropClaim deletes a volume, and waits until the view shows that. Kubernetes deletes it when
// its last user is gone.
func (p *Provider) dropClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	err := p.api.core.PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{})
	if err := ignoreGone(err); err != nil {
		return err
	}
	return p.view.awaitClaim(ctx, claim, false)
}

// DropVolumesOf implements remote.Volumes. An object does not tell which creation has made it,
// so the volumes stay.
func (b backend) DropVolumesOf(context.Context, *record) error { return nil }

// isMounted reports whether a sandbox, running or stopped, has the named volume.
func (p *Provider) isMounted(namespace, claim string) bool {
	for key := range remote.UsedVolumes(p.knownRecords()) {
		if p.namespaceOf(key.Project) == namespace && p.names.volumeName(key.Project, key.Name) == claim {
			return true
		}
	}
	return false
}

// ListVolumes implements remote.Volumes.
func (b backend) ListVolumes(context.Context) ([]atoll.Volume, error) {
	var list []atoll.Volume
	for _, c := range b.view.allClaims() {
		v := atoll.Volume{Project: c.Annotations[annotationProject], Name: c.Annotations[annotationVolume], Created: c.CreationTimestamp.Time}
		if id := c.Labels[labelSession]; id != "" {
			v.Name, v.Sandbox = volume.DataName(id), id
		}
		if c.DeletionTimestamp == nil && v.Name != "" {
			list = append(list, v)
		}
	}
	return list, nil
}

// UsedVolumes implements remote.Volumes.
func (b backend) UsedVolumes(context.Context) (map[remote.VolumeKey]bool, error) {
	return remote.UsedVolumes(b.knownRecords()), nil
}

// DeleteVolume implements remote.Volumes.
func (b backend) DeleteVolume(ctx context.Context, project, name string) error {
	own := b.names.volumeName(project, name)
	if id := remote.SandboxOfVolume(name); id != "" {
		own = b.names.dataVolumeName(id)
	}
	found, err := b.api.core.PersistentVolumeClaims(b.namespaceOf(project)).Get(ctx, own, getOptions)
	if apierrors.IsNotFound(err) || err == nil && (found.Annotations[annotationProject] != project || found.DeletionTimestamp != nil) {
		return remote.NoVolumeError(project, name)
	}
	if err != nil {
		return err
	}
	if remote.UsedVolumes(b.knownRecords())[remote.VolumeKey{Project: project, Name: name}] {
		return remote.VolumeInUseError(name)
	}
	return b.dropClaim(ctx, found)
}

// RemoveProject implements atoll.ProjectRemover. It removes the sandboxes, the volumes and the
// namespace of the project.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	if err := p.view.open(ctx, "remove project"); err != nil {
		return err
	}
	if err := volume.RemoveProject(ctx, p, project); err != nil {
		return err
	}
	if !p.opts.PerProject {
		return nil
	}
	ns, err := p.api.core.Namespaces().Get(ctx, p.namespaceOf(project), getOptions)
	if err == nil && ns.Labels[labelOwner] == string(p.names) {
		err = p.dropNamespace(ctx, ns.Name)
	}
	return p.wrapError(ctx, "remove project", project, ignoreGone(err))
}

// dropNamespace deletes a project's namespace, unless servers with another prefix have objects
// in it.
func (p *Provider) dropNamespace(ctx context.Context, name string) error {
	others := metav1.ListOptions{LabelSelector: labelOwner + "," + labelOwner + "!=" + string(p.names), Limit: 1}
	records, err := p.api.core.ConfigMaps(name).List(ctx, others)
	if err != nil || len(records.Items) > 0 {
		return err
	}
	claims, err := p.api.core.PersistentVolumeClaims(name).List(ctx, others)
	if err != nil || len(claims.Items) > 0 {
		return err
	}
	return p.api.core.Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
}

var (
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
)
