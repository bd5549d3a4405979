package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	storagev1client "k8s.io/client-go/kubernetes/typed/storage/v1"
)

// Class is the cluster's default StorageClass. Each of its volumes is a directory, created when a pod
// needs it.
const Class = "directories"

// provideVolumes creates the volumes of claims, until ctx ends, and deletes them after their claims.
func (c *Cluster) provideVolumes(ctx context.Context) error {
	core, err := corev1client.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	storage, err := storagev1client.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	late := storagev1.VolumeBindingWaitForFirstConsumer // as in clouds
	_, err = storage.StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: Class, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "example.com/directories", VolumeBindingMode: &late,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			_ = c.serveClaims(ctx, core) // fails while there is no API server
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return nil
}

func (c *Cluster) serveClaims(ctx context.Context, core corev1client.CoreV1Interface) error {
	claims, err := core.PersistentVolumeClaims("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer claims.Stop()
	volumes, err := core.PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer volumes.Stop()
	for {
		select {
		case ev, ok := <-claims.ResultChan():
			if !ok {
				return errors.New("watch ended")
			}
			claim, ok := ev.Object.(*corev1.PersistentVolumeClaim)
			if ok && claim.Status.Phase == corev1.ClaimPending && claim.Annotations[selectedNode] != "" && claim.DeletionTimestamp == nil {
				if err := c.makeVolume(ctx, core, claim); err != nil {
					return err
				}
			}
		case ev, ok := <-volumes.ResultChan():
			if !ok {
				return errors.New("watch ended")
			}
			v, ok := ev.Object.(*corev1.PersistentVolume)
			if ok && v.Spec.Local != nil && v.Status.Phase == corev1.VolumeReleased && v.DeletionTimestamp == nil {
				if err := core.PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
				if out, err := exec.CommandContext(ctx, "rm", "-rf", v.Spec.Local.Path).CombinedOutput(); err != nil { // rm can remove trees of any depth
					return fmt.Errorf("%w: %s", err, out)
				}
			}
		}
	}
}

// selectedNode is an annotation of a claim whose pod has been scheduled.
const selectedNode = "volume.kubernetes.io/selected-node"

func (c *Cluster) makeVolume(ctx context.Context, core corev1client.CoreV1Interface, claim *corev1.PersistentVolumeClaim) error {
	dir := c.filePath("volumes", string(claim.UID))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, err := core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: string(claim.UID)},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: Class, AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node1"}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
