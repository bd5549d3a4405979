package kubernetes

import (
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
)

// CheckSpec implements remote.Backend.
func (b backend) CheckSpec(spec *atoll.Spec) error {
	const unenforced = "the cluster's network does not enforce NetworkPolicies, as far as is known: see atoll doctor"
	err := spec.CheckCaps("kubernetes", b.opts.caps(), map[string]string{
		"users":         "the profile is " + string(b.opts.Profile) + "; set kubernetes.profile to " + string(Baseline),
		"network_on":    unenforced,
		"egress":        unenforced,
		"bind_mounts":   "a pod may run on any node",
		"volumes":       "kubernetes.ephemeral is set",
		"process_limit": "the node sets it (podPidsLimit)",
	})
	if err != nil {
		return err
	}
	return checkAllowList(spec)
}

// userAndGroup returns UID:GID of a user whose group has the same number.
func userAndGroup(user int64) string {
	n := strconv.FormatInt(user, 10)
	return n + ":" + n
}

// Prepare implements remote.Volumes.
func (b backend) Prepare(c *creation) []steps.Step {
	return []steps.Step{
		{Name: "data volume", Do: func(ctx context.Context) error { return b.createDataVolume(ctx, c) }},
		{Name: "volumes", Do: func(ctx context.Context) error { return b.createVolumes(ctx, c) }},
		{Name: "network", Do: func(ctx context.Context) error { return b.createPolicy(ctx, c.Record) }},
	}
}

// createError returns the error for an object that the API server did not create.
func (p *Provider) createError(spec *atoll.Spec, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return atoll.Errorf("create", spec.ID, atoll.ErrUnavailable, "namespace %s not found: run kubectl create namespace %[1]s", p.namespaceOf(spec.Project))
	case isQuota(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return atoll.E("create", spec.ID, kindOf(err), err)
	case apierrors.IsForbidden(err):
		return atoll.Errorf("create", spec.ID, atoll.ErrUnavailable, "the cluster does not allow its objects: %w", err)
	}
	return err
}

// podError returns the error for a pod that the API server did not create.
func (p *Provider) podError(id string, err error) error {
	if apierrors.IsForbidden(err) && !isQuota(err) {
		return atoll.Errorf("create", id, atoll.ErrUnavailable, "the cluster does not allow its pod: %w", err)
	}
	if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "image") {
		return atoll.E("create", id, atoll.ErrInvalid, err)
	}
	return err
}
