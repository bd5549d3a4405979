package router

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// Probe implements atoll.Prober. It returns the Probe of the default member, with
// notes about the problems of others that have sandboxes.
func (p *Provider) Probe(ctx context.Context) atoll.Probe {
	answers := askMembers(ctx, p.members, func(ctx context.Context, leaf atoll.Provider) (atoll.Probe, error) {
		return atoll.ProbeProvider(ctx, leaf), nil
	})
	probe := answers[0].val
	if err := answers[0].err; err != nil {
		probe = atoll.Probe{Reason: err.Error()}
	}
	for _, a := range answers[1:] {
		switch {
		case !a.m.isUsed():
		case a.err != nil:
			probe.Notes = append(probe.Notes, a.m.name+": "+a.err.Error())
		case !a.val.OK:
			probe.Notes = append(probe.Notes, strings.TrimSuffix(a.m.name+": "+a.val.Reason+": "+a.val.Fix, ": "))
		}
	}
	return probe
}

// Prepare implements atoll.Preparer, with the member that would create a sandbox of
// spec.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	m, err := p.chooseMember(ctx, spec)
	if err != nil {
		return err
	}
	leaf, err := m.openLeaf()
	if err != nil {
		return err
	}
	s := *spec
	s.Provider = m.name
	return atoll.Prepare(ctx, leaf, &s, progress)
}

// RemoveProject implements atoll.ProjectRemover. It continues with other members
// after a failure. It ignores an unavailable member that has no sandboxes.
func (p *Provider) RemoveProject(ctx context.Context, project string) error {
	answers := askMembers(ctx, p.members, func(ctx context.Context, leaf atoll.Provider) ([]atoll.Status, error) {
		return leaf.List(ctx, atoll.Filter{Project: project})
	})
	return forEachAnswer(ctx, answers, func(leaf atoll.Provider) error { return atoll.RemoveProject(ctx, leaf, project) })
}

// Projects implements atoll.ProjectLister.
func (p *Provider) Projects(ctx context.Context) ([]atoll.Project, error) {
	all, err := joinAnswers(ctx, askMembers(ctx, p.members, atoll.Projects))
	slices.SortStableFunc(all, func(a, b atoll.Project) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// forEachAnswer calls f concurrently for each member that has answered. It joins
// the errors of f and those of unavailable members that have sandboxes.
func forEachAnswer[T any](ctx context.Context, answers []memberAnswer[T], f func(leaf atoll.Provider) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	errs := make([]error, len(answers))
	var all sync.WaitGroup
	for i, a := range answers {
		if a.err != nil {
			if a.m.isUsed() && !isMissing(a.err) {
				errs[i] = a.err
			}
			continue
		}
		all.Go(func() {
			leaf, err := a.m.openLeaf()
			if err == nil {
				err = f(leaf)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Volumes implements atoll.VolumeStore.
func (p *Provider) Volumes(ctx context.Context, project string) ([]atoll.Volume, error) {
	all, err := joinAnswers(ctx, askMembers(ctx, p.members, listVolumes(project)))
	slices.SortStableFunc(all, func(a, b atoll.Volume) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return all, err
}

// listVolumes returns a function that lists the volumes of a project at a provider.
func listVolumes(project string) func(context.Context, atoll.Provider) ([]atoll.Volume, error) {
	return func(ctx context.Context, leaf atoll.Provider) ([]atoll.Volume, error) {
		return atoll.Volumes(ctx, leaf, project)
	}
}

// RemoveVolume implements atoll.VolumeStore.
func (p *Provider) RemoveVolume(ctx context.Context, project, name string) error {
	return removeThing(ctx, p, removal[atoll.Volume]{
		op: "remove volume", name: name, list: listVolumes(cmp.Or(project, atoll.DefaultProject)),
		matches: func(v atoll.Volume) bool { return v.Name == name },
		remove:  func(leaf atoll.Provider, name string) error { return atoll.RemoveVolume(ctx, leaf, project, name) },
	})
}

// Images implements atoll.ImageStore.
func (p *Provider) Images(ctx context.Context) ([]atoll.Image, error) {
	all, err := joinAnswers(ctx, askMembers(ctx, p.members, atoll.Images))
	slices.SortStableFunc(all, func(a, b atoll.Image) int { return strings.Compare(a.Ref, b.Ref) })
	return all, err
}

// RemoveImage implements atoll.ImageStore.
func (p *Provider) RemoveImage(ctx context.Context, ref string, force bool) error {
	return removeThing(ctx, p, removal[atoll.Image]{
		op: "remove image", name: ref, list: atoll.Images,
		matches: func(img atoll.Image) bool { return matchesImage(img, ref) },
		remove:  func(leaf atoll.Provider, ref string) error { return atoll.RemoveImage(ctx, leaf, ref, force) },
	})
}

// matchesImage reports whether ref is the digest of img, or its name, in full or in
// docker's short form.
func matchesImage(img atoll.Image, ref string) bool {
	if ref == img.Digest {
		return true
	}
	for _, registry := range []string{"", "docker.io/", "docker.io/library/"} {
		if full := registry + ref; full == img.Ref || full+":latest" == img.Ref {
			return true
		}
	}
	return false
}

// PruneImages implements atoll.ImageStore.
func (p *Provider) PruneImages(ctx context.Context, opts atoll.PruneOptions) (atoll.Pruned, error) {
	members := p.members
	if opts.Provider != "" {
		m := p.memberNamed(opts.Provider)
		if m == nil {
			return atoll.Pruned{}, atoll.E("prune images", "", atoll.ErrInvalid, p.unknownMemberError(opts.Provider))
		}
		members, opts.Provider = []*member{m}, ""
	}
	answers := askMembers(ctx, members, atoll.Images)
	if _, err := joinAnswers(ctx, answers); err != nil {
		return atoll.Pruned{}, err
	}
	var mu sync.Mutex
	total := atoll.Pruned{Images: []string{}}
	err := forEachAnswer(ctx, answers, func(leaf atoll.Provider) error {
		pruned, err := atoll.PruneImages(ctx, leaf, opts)
		mu.Lock()
		defer mu.Unlock()
		total.Images, total.Size = append(total.Images, pruned.Images...), total.Size+pruned.Size
		return err
	})
	slices.Sort(total.Images)
	return total, err
}

// Snapshots implements atoll.SnapshotStore.
func (p *Provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	all, err := joinAnswers(ctx, askMembers(ctx, p.members, listSnapshots))
	slices.SortStableFunc(all, func(a, b atoll.Snapshot) int { return a.Created.Compare(b.Created) })
	return all, err
}

// listSnapshots lists the snapshots of a provider. It does not call one without
// Caps.Snapshot.
func listSnapshots(ctx context.Context, leaf atoll.Provider) ([]atoll.Snapshot, error) {
	if !leaf.Info().Caps.Snapshot {
		return nil, atoll.E("snapshots", leaf.Info().Name, atoll.ErrUnsupported, nil)
	}
	return atoll.Snapshots(ctx, leaf)
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *Provider) RemoveSnapshot(ctx context.Context, id string) error {
	return removeThing(ctx, p, removal[atoll.Snapshot]{
		op: "remove snapshot", name: id, list: listSnapshots, matches: matchesSnapshot(id),
		remove: func(leaf atoll.Provider, id string) error { return atoll.RemoveSnapshot(ctx, leaf, id) },
	})
}

// matchesSnapshot returns a function that reports whether a snapshot has the ID.
func matchesSnapshot(id string) func(atoll.Snapshot) bool {
	n, err := atoll.NormalizeID(id)
	return func(s atoll.Snapshot) bool { return err == nil && s.ID == n }
}

// snapshotOwner returns the member that has the snapshot. If no member has it, it
// returns otherwise, whose Create then fails.
func (p *Provider) snapshotOwner(ctx context.Context, snapshot string, otherwise *member) (*member, error) {
	if len(p.members) == 1 {
		return otherwise, nil
	}
	answers := askMembers(ctx, p.members, listSnapshots)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, a := range answers {
		if slices.ContainsFunc(a.val, matchesSnapshot(snapshot)) {
			return a.m, nil
		}
	}
	for _, a := range answers {
		if a.err != nil && !isMissing(a.err) && a.m.isUsed() {
			return nil, a.err
		}
	}
	return otherwise, nil
}

// A removal is a call that removes an object at the member that has it.
type removal[T any] struct {
	op, name string
	list     func(ctx context.Context, leaf atoll.Provider) ([]T, error)
	matches  func(T) bool // reports whether an object in the list has the name
	remove   func(leaf atoll.Provider, name string) error
}

// removeThing removes an object at the member that lists it. If no member lists it,
// it tries all: a member may accept other forms of the name.
func removeThing[T any](ctx context.Context, p *Provider, r removal[T]) error {
	m, name := p.members[0], r.name
	if named, rest := p.splitQualified(r.name); named != nil {
		m, name = named, rest
	} else if len(p.members) > 1 {
		answers := askMembers(ctx, p.members, r.list)
		if err := ctx.Err(); err != nil {
			return err
		}
		var found []*member
		for _, a := range answers {
			if slices.ContainsFunc(a.val, r.matches) {
				found = append(found, a.m)
			}
		}
		switch len(found) {
		case 0:
			return removeAnywhere(answers, r)
		case 1:
			m = found[0]
		default:
			return atoll.Errorf(r.op, r.name, atoll.ErrConflict, "both %s and %s have it: write %[1]s=%[3]s or %[2]s=%[3]s",
				found[0].name, found[1].name, r.name)
		}
	}
	leaf, err := m.openLeaf()
	if err != nil {
		return err
	}
	return r.remove(leaf, name)
}

// removeAnywhere tries the members that have answered, one after another.
func removeAnywhere[T any](answers []memberAnswer[[]T], r removal[T]) error {
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			continue
		}
		leaf, err := a.m.openLeaf()
		if err == nil {
			err = r.remove(leaf, r.name)
		}
		if a.err = err; !isMissing(err) {
			return err
		}
	}
	return missingError(answers)
}

// splitQualified splits MEMBER=NAME. The member is nil if there is none with that
// name.
func (p *Provider) splitQualified(name string) (*member, string) {
	first, rest, _ := strings.Cut(name, "=")
	return p.memberNamed(first), rest
}

var (
	_ atoll.Prober         = (*Provider)(nil)
	_ atoll.Preparer       = (*Provider)(nil)
	_ atoll.ProjectRemover = (*Provider)(nil)
	_ atoll.ProjectLister  = (*Provider)(nil)
	_ atoll.VolumeStore    = (*Provider)(nil)
	_ atoll.ImageStore     = (*Provider)(nil)
	_ atoll.SnapshotStore  = (*Provider)(nil)
)
