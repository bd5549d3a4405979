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

// A mark is an empty volume that says when a sandbox's time is over, or that it was
// asked to stop. The engine changes no label of a container, and whoever shares it
// has to see what is new.
type mark struct {
	volume  string
	sandbox string
	made    time.Time
	expires time.Time // zero means never
	stopped string    // the life that was asked to stop; "" if the mark says when it expires
}

// The labels of a mark.
const (
	labelExtends = "atoll.extends" // the sandbox's id
	labelExpires = "atoll.expires" // nanoseconds since 1970; 0 means never
	labelStopped = "atoll.stopped" // when the life began that was asked to stop
)

// marks returns those of a sandbox, or of all when id is "", the newest first.
func (p *Provider) marks(ctx context.Context, id string) ([]mark, error) {
	found, err := p.labelled(ctx, labelExtends, id)
	if err != nil {
		return nil, err
	}
	var all []mark
	for _, v := range found {
		id := v.Labels[labelExtends]
		nanos, err := strconv.ParseInt(v.Labels[labelExpires], 10, 64)
		made, ok := p.names.markMade(id, v.Name)
		m := mark{volume: v.Name, sandbox: id, made: made, stopped: v.Labels[labelStopped]}
		if !ok || err != nil && m.stopped == "" {
			continue // not one of ours
		}
		if nanos != 0 {
			m.expires = time.Unix(0, nanos)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b mark) int { return cmp.Or(b.made.Compare(a.made), cmp.Compare(a.volume, b.volume)) })
	return all, nil
}

// readMarks puts into r when its time is over, if that was changed, and whether it
// was asked to stop: what its main process exits with then is no failure.
func (p *Provider) readMarks(ctx context.Context, r *record) error {
	failed := r.plain && r.State == atoll.StateFailed && r.Exit != nil && r.Exit.Reason == ""
	if r.Spec.TTL <= 0 && !failed {
		return nil
	}
	all, err := p.marks(ctx, r.ID)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(m mark) bool { return m.stopped == "" }); i >= 0 {
		r.Expires = all[i].expires
	}
	if failed && slices.ContainsFunc(all, func(m mark) bool { return m.stopped == r.life() }) {
		r.State, r.Reason = atoll.StateStopped, ""
	}
	return nil
}

// life names the sandbox's life from its start to its end.
func (r *record) life() string { return r.Started.UTC().Format(time.RFC3339Nano) }

// markStopped notes that a sandbox without a guest was asked to stop. A guest says so
// itself.
func (p *Provider) markStopped(ctx context.Context, r *record) error {
	if !r.plain || len(r.Spec.Cmd) == 0 {
		return nil
	}
	old, err := p.marks(ctx, r.ID)
	if err != nil {
		return err
	}
	labels := p.names.labels(r.Spec.Project)
	labels[labelExtends], labels[labelStopped] = r.ID, r.life()
	err = settled(ctx, func(ctx context.Context) error {
		_, err := p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: p.names.mark(r.ID, time.Now()), Labels: labels})
		return err
	})
	if err != nil {
		return err
	}
	return p.removeMarks(ctx, slices.DeleteFunc(old, func(m mark) bool { return m.stopped == "" }))
}

// removeMarks removes marks that do not count any more.
func (p *Provider) removeMarks(ctx context.Context, all []mark) error {
	for _, m := range all {
		_, err := p.engine.VolumeRemove(ctx, m.volume, client.VolumeRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) {
			return p.failed(ctx, "remove", m.sandbox, err)
		}
	}
	return nil
}

// unmark removes what is left of the marks of an id, which the caller has locked.
func (p *Provider) unmark(ctx context.Context, id string) error {
	all, err := p.marks(ctx, id)
	if err != nil {
		return p.failed(ctx, "remove", id, err)
	}
	return p.removeMarks(ctx, all)
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	defer s.p.sweeper.Rouse()
	return s.locked(ctx, "extend", func(r *record) error {
		now := time.Now()
		st, err := r.Status.Extended(ttl, now)
		if err != nil {
			return err
		}
		old, err := s.p.marks(ctx, s.id)
		if err != nil {
			return s.p.failed(ctx, "extend", s.id, err)
		}
		labels := s.p.names.labels(r.Spec.Project)
		labels[labelExtends], labels[labelExpires] = s.id, "0"
		if !st.Expires.IsZero() {
			labels[labelExpires] = strconv.FormatInt(st.Expires.UnixNano(), 10)
		}
		err = settled(ctx, func(ctx context.Context) error {
			_, err := s.p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: s.p.names.mark(s.id, now), Labels: labels})
			return err
		})
		if err != nil {
			return s.p.failed(ctx, "extend", s.id, err)
		}
		old = slices.DeleteFunc(old, func(m mark) bool { return m.stopped != "" })
		return s.p.removeMarks(ctx, old) // the newest counts, should one be left
	})
}

var _ atoll.Extender = (*sandbox)(nil)
