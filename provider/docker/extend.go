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

// A mark is an empty volume that says when a sandbox's time is over. The engine
// changes no label of a container, and whoever shares it has to see the new time.
type mark struct {
	volume  string
	sandbox string
	made    time.Time
	expires time.Time // zero means never
}

// The labels of a mark.
const (
	labelExtends = "atoll.extends" // the sandbox's id
	labelExpires = "atoll.expires" // nanoseconds since 1970; 0 means never
)

// marks returns those of a sandbox, or of all when id is "", the newest first.
func (p *Provider) marks(ctx context.Context, id string) ([]mark, error) {
	label := labelExtends
	if id != "" {
		label += "=" + id
	}
	filters := client.Filters{}.Add("label", labelOwner+"="+string(p.names)).Add("label", label)
	found, err := p.engine.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return nil, err
	}
	var all []mark
	for _, v := range found.Items {
		id := v.Labels[labelExtends]
		nanos, err := strconv.ParseInt(v.Labels[labelExpires], 10, 64)
		made, ok := p.names.markMade(id, v.Name)
		if err != nil || !ok {
			continue // not one of ours
		}
		m := mark{volume: v.Name, sandbox: id, made: made}
		if nanos != 0 {
			m.expires = time.Unix(0, nanos)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b mark) int { return cmp.Or(b.made.Compare(a.made), cmp.Compare(a.volume, b.volume)) })
	return all, nil
}

// readMarks puts into st when its time is over, if that was changed.
func (p *Provider) readMarks(ctx context.Context, st *atoll.Status) error {
	if st.Spec.TTL <= 0 {
		return nil
	}
	all, err := p.marks(ctx, st.ID)
	if err == nil && len(all) > 0 {
		st.Expires = all[0].expires
	}
	return err
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
	defer s.p.sweeper.rouse()
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
		return s.p.removeMarks(ctx, old) // the newest counts, should one be left
	})
}

var _ atoll.Extender = (*sandbox)(nil)
