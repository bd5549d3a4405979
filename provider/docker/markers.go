package docker

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// A marker is an empty volume whose labels record a sandbox's new expiry, or that it was asked
// to stop. The engine cannot change the labels of a container, and every program that shares the
// engine must see the change.
type marker struct {
	volume     string
	sandbox    string
	created    time.Time
	expires    time.Time // zero means never
	stoppedRun string    // the runID of the run that was asked to stop; "" if the marker is about the expiry
}

// The labels of a marker.
const (
	labelExtends = "atoll.extends" // the sandbox's id
	labelExpires = "atoll.expires" // nanoseconds since 1970; 0 means never
	labelStopped = "atoll.stopped" // the runID of the run that was asked to stop
)

// listMarkers returns the markers of a sandbox, or of all if id is "", newest first.
func (p *Provider) listMarkers(ctx context.Context, id string) ([]marker, error) {
	found, err := p.labelledVolumes(ctx, labelExtends, id)
	if err != nil {
		return nil, err
	}
	var all []marker
	for _, v := range found {
		id := v.Labels[labelExtends]
		nanos, err := strconv.ParseInt(v.Labels[labelExpires], 10, 64)
		made, ok := p.names.markerTime(id, v.Name)
		m := marker{volume: v.Name, sandbox: id, created: made, stoppedRun: v.Labels[labelStopped]}
		if !ok || err != nil && m.stoppedRun == "" {
			continue // not a marker
		}
		if nanos != 0 {
			m.expires = time.Unix(0, nanos)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b marker) int { return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.volume, b.volume)) })
	return all, nil
}

// applyMarkers sets the expiry of r, if it was changed. If the last run was asked to stop,
// applyMarkers also sets its state to stopped: then the exit code of the main process does not
// mean a failure.
func (p *Provider) applyMarkers(ctx context.Context, r *record) error {
	failed := r.plain && r.State == atoll.StateFailed && r.Exit != nil && r.Exit.Reason == ""
	if r.Spec.TTL <= 0 && !failed {
		return nil
	}
	all, err := p.listMarkers(ctx, r.ID)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(m marker) bool { return m.stoppedRun == "" }); i >= 0 {
		r.Expires = all[i].expires
	}
	if failed && slices.ContainsFunc(all, func(m marker) bool { return m.stoppedRun == r.runID() }) {
		r.State, r.Reason = atoll.StateStopped, ""
	}
	return nil
}

// runID identifies the last run of the sandbox.
func (r *record) runID() string { return r.Started.UTC().Format(time.RFC3339Nano) }

// markStopped records that a sandbox without a guest was asked to stop. A guest reports that
// itself.
func (p *Provider) markStopped(ctx context.Context, r *record) error {
	if !r.plain || len(r.Spec.Cmd) == 0 {
		return nil
	}
	old, err := p.listMarkers(ctx, r.ID)
	if err != nil {
		return err
	}
	labels := p.names.projectLabels(r.Spec.Project)
	labels[labelExtends], labels[labelStopped] = r.ID, r.runID()
	err = p.runToEnd(ctx, func(ctx context.Context) error {
		_, err := p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: p.names.markerName(r.ID, time.Now()), Labels: labels})
		return err
	})
	if err != nil {
		return err
	}
	return p.removeMarkers(ctx, slices.DeleteFunc(old, func(m marker) bool { return m.stoppedRun == "" }))
}

// removeMarkers removes markers that no longer count.
func (p *Provider) removeMarkers(ctx context.Context, all []marker) error {
	for _, m := range all {
		_, err := p.engine.VolumeRemove(ctx, m.volume, client.VolumeRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) {
			return p.wrapError(ctx, "remove", m.sandbox, err)
		}
	}
	return nil
}

// clearMarkers removes all markers of an id. The caller holds its lock.
func (p *Provider) clearMarkers(ctx context.Context, id string) error {
	all, err := p.listMarkers(ctx, id)
	if err != nil {
		return p.wrapError(ctx, "remove", id, err)
	}
	return p.removeMarkers(ctx, all)
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	defer s.p.sweeper.Wake()
	return s.withLockedRecord(ctx, "extend", func(r *record) error {
		now := time.Now()
		st, err := r.Status.Extended(ttl, now)
		if err != nil {
			return err
		}
		old, err := s.p.listMarkers(ctx, s.id)
		if err != nil {
			return s.p.wrapError(ctx, "extend", s.id, err)
		}
		labels := s.p.names.projectLabels(r.Spec.Project)
		labels[labelExtends], labels[labelExpires] = s.id, "0"
		if !st.Expires.IsZero() {
			labels[labelExpires] = strconv.FormatInt(st.Expires.UnixNano(), 10)
		}
		err = s.p.runToEnd(ctx, func(ctx context.Context) error {
			_, err := s.p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: s.p.names.markerName(s.id, now), Labels: labels})
			return err
		})
		if err != nil {
			return s.p.wrapError(ctx, "extend", s.id, err)
		}
		old = slices.DeleteFunc(old, func(m marker) bool { return m.stoppedRun != "" })
		return s.p.removeMarkers(ctx, old) // if this fails, the newest one counts
	})
}

var _ atoll.Extender = (*sandbox)(nil)
