package kubernetes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// errEnded reports that a pod ended before it was of use.
var errEnded = errors.New("its pod has ended")

// createClaim creates a volume, unless it exists.
func (c *creation) createClaim(ctx context.Context, name string, labels map[string]string, volume string) error {
	claims := c.p.api.core.PersistentVolumeClaims(c.r.object.Namespace)
	found, err := claims.Get(ctx, name, getOptions)
	if err == nil && found.DeletionTimestamp != nil {
		c.awaitDeletion(ctx, found)
		found, err = claims.Get(ctx, name, getOptions)
	}
	if err == nil && found.DeletionTimestamp != nil {
		return atoll.Errorf("create", c.spec.ID, atoll.ErrConflict, "a volume of this name is being deleted, and something still uses it: kubectl describe pvc %s", name)
	}
	if of := claimAnnotation(found, annotationProject); err == nil && of != c.spec.Project {
		return c.otherProjectError(of)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	mode := corev1.ReadWriteOnce
	if volume != "" && c.p.opts.SharedVolumes {
		mode = corev1.ReadWriteMany
	}
	made := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{annotationProject: c.spec.Project, annotationVolume: volume}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(c.p.opts.VolumeSize), resource.BinarySI)}},
		},
	}
	if class := c.p.opts.StorageClass; class != "" {
		made.Spec.StorageClassName = &class
	}
	return runToEnd(ctx, func(ctx context.Context) error {
		claim, err := claims.Create(ctx, made, createOptions)
		if apierrors.IsAlreadyExists(err) {
			return nil // another sandbox of the project has just created it
		}
		if err != nil {
			return c.createError(err)
		}
		c.claims = append(c.claims, name)
		return c.p.view.awaitClaim(ctx, claim, true)
	})
}

// otherProjectError returns the error for a data volume of another project.
func (c *creation) otherProjectError(project string) error {
	return atoll.Errorf("create", c.spec.ID, atoll.ErrConflict, "the data volume of this id belongs to project %s: remove that, or use another id", project)
}

// volumeDeleteTimeout bounds the wait for a deleted volume whose last user has not gone yet.
const volumeDeleteTimeout = 20 * time.Second

// awaitDeletion waits a while for the deletion of a volume.
func (c *creation) awaitDeletion(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	ctx, cancel := context.WithTimeout(ctx, volumeDeleteTimeout)
	defer cancel()
	_ = c.p.view.waitUntil(ctx, claim.Labels[labelSession], func() bool { return !c.p.view.hasClaim(claim) })
}

func claimAnnotation(object *corev1.PersistentVolumeClaim, key string) string {
	if object == nil {
		return ""
	}
	return object.Annotations[key]
}

// checkDataVolume returns an error if a sandbox's data volume was deleted: an empty volume in
// its place would hide the loss.
func (p *Provider) checkDataVolume(ctx context.Context, r *record) error {
	if !r.note.Volume {
		return nil
	}
	claim, err := p.api.core.PersistentVolumeClaims(r.object.Namespace).Get(ctx, p.names.dataVolumeName(r.ID), getOptions)
	if apierrors.IsNotFound(err) || err == nil && claim.DeletionTimestamp != nil {
		return atoll.Errorf("start", r.ID, atoll.ErrUnavailable, "its data volume %s was deleted by somebody else: its files are lost; remove the sandbox and create it again", p.names.dataVolumeName(r.ID))
	}
	return err
}

// dropDataVolume deletes the data volume of a removed sandbox; r is its last record, or nil.
func (p *Provider) dropDataVolume(ctx context.Context, id string, r *record) error {
	ns := p.opts.Namespace
	switch {
	case r != nil:
		ns = r.object.Namespace
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

// isMounted reports whether a sandbox, running or stopped, has the volume.
func (p *Provider) isMounted(namespace, claim string) bool {
	return p.usedVolumes()[namespace+"/"+claim]
}

// usedVolumes returns the volumes of all sandboxes, running or stopped, by namespace and name.
func (p *Provider) usedVolumes() map[string]bool {
	used := map[string]bool{}
	for _, object := range p.view.allRecords() {
		r := p.decodeRecord(object)
		if r.note.Volume {
			used[object.Namespace+"/"+p.names.dataVolumeName(r.ID)] = true
		}
		for _, m := range r.Spec.Mounts {
			if m.Type == atoll.MountVolume {
				used[object.Namespace+"/"+p.names.volumeName(r.Spec.Project, m.Source)] = true
			}
		}
	}
	return used
}

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	if p.opts.Ephemeral {
		return nil, atoll.E("volumes", "kubernetes", atoll.ErrUnsupported, nil)
	}
	if err := p.view.open(ctx, "volumes"); err != nil {
		return nil, err
	}
	used := p.usedVolumes()
	var list []atoll.Volume
	for _, c := range p.view.allClaims() {
		v := atoll.Volume{
			Provider: "kubernetes", Project: c.Annotations[annotationProject], Name: c.Annotations[annotationVolume],
			InUse: used[c.Namespace+"/"+c.Name], Created: c.CreationTimestamp.Time,
		}
		if id := c.Labels[labelSession]; id != "" {
			v.Name, v.Sandbox = volume.DataName(id), id
		}
		if c.DeletionTimestamp == nil && v.Name != "" && (project == "" || v.Project == project) {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b atoll.Volume) int { return strings.Compare(a.Project+"/"+a.Name, b.Project+"/"+b.Name) })
	return list, nil
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	if p.opts.Ephemeral {
		return atoll.E("remove volume", name, atoll.ErrUnsupported, nil)
	}
	if project == "" {
		project = atoll.DefaultProject
	}
	if err := p.view.open(ctx, "remove volume"); err != nil {
		return err
	}
	own := p.names.volumeName(project, name)
	if id, err := atoll.NormalizeID(strings.TrimPrefix(name, "data-")); err == nil && id != "" && volume.DataName(id) == name {
		own = p.names.dataVolumeName(id)
	}
	claims := p.api.core.PersistentVolumeClaims(p.namespaceOf(project))
	found, err := claims.Get(ctx, own, getOptions)
	if apierrors.IsNotFound(err) || err == nil && (found.Annotations[annotationProject] != project || found.DeletionTimestamp != nil) {
		return atoll.Errorf("remove volume", name, atoll.ErrNotExist, "no volume %q in project %q", name, project)
	}
	if err != nil {
		return p.wrapError(ctx, "remove volume", name, err)
	}
	if p.isMounted(found.Namespace, own) {
		return atoll.Errorf("remove volume", name, atoll.ErrConflict, "a sandbox mounts it")
	}
	return p.wrapError(ctx, "remove volume", name, p.dropClaim(ctx, found))
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
