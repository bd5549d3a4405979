package authz

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// bounded is what is asked for in place of spec: its project is one of the caller's,
// and nothing in it leads out of that.
func (p *provider) bounded(ctx context.Context, op string, spec *atoll.Spec) (*atoll.Spec, error) {
	a, ok := bound(ctx)
	if !ok {
		return spec, nil
	}
	project, err := p.project(ctx, op, spec.Project, spec.Name)
	if err != nil {
		return nil, err
	}
	c := *spec
	c.Project = project
	if !auth.Vouched(ctx) {
		if why := leadsOut(&c); why != "" {
			return nil, p.deny(ctx, op, project, c.Name, "%s: it takes the role %s", why, auth.RoleAdmin)
		}
	}
	if err := p.opts.Refuse(ctx, &c); err != nil {
		p.opts.Denied(ctx, op, project, c.Name)
		return nil, err
	}
	if err := p.sources(ctx, a, op, &c); err != nil {
		return nil, err
	}
	return &c, nil
}

// leadsOut says what in s reaches beyond its project, "" for nothing. A sandbox that
// has some of the machine, or of its networks, has what is other projects'.
func leadsOut(s *atoll.Spec) string {
	for _, m := range s.Mounts {
		if m.Type == atoll.MountBind {
			return "mount " + m.Target + ": a directory of the server's machine is not the project's"
		}
	}
	scheme, _, _ := strings.Cut(s.Image, ":")
	if strings.HasPrefix(s.Image, "/") || strings.HasPrefix(s.Image, ".") || slices.Contains([]string{"oci", "docker-archive", "dir", "file"}, scheme) {
		return "image " + s.Image + ": a file of the server's machine is not the project's"
	}
	for _, port := range s.Ports {
		if port.HostPort != 0 {
			return fmt.Sprintf("host port %d: it is one of the machine, which others may use; publish %d without one", port.HostPort, port.Port)
		}
	}
	if s.Workspace.Source != "" {
		return "workspace: what is cloned is what the server may read; name one that is there"
	}
	switch n := s.Network; {
	case n.Mode == atoll.NetworkNamed:
		return "network " + n.Name + ": it is not the project's"
	case n.Mode == atoll.NetworkOn && len(n.Allow) > 0:
		return "network: what allow opens is around the server"
	default:
		for _, to := range n.Allow { // only a wildcard opens nothing but public addresses
			if !strings.HasPrefix(to, "*.") {
				return "network: allow " + to + " can be an address around the server; *." + to + " cannot"
			}
		}
	}
	return ""
}

// sources hides what is other projects' and that s is to be made from. That the data
// volume of another project goes to nobody is for providers to see to.
func (p *provider) sources(ctx context.Context, a auth.Account, op string, s *atoll.Spec) error {
	if s.Snapshot == "" {
		return nil
	}
	_, err := p.snapshot(ctx, a, op, s.Snapshot)
	return err
}

// snapshot finds one of the caller's.
func (p *provider) snapshot(ctx context.Context, a auth.Account, op, id string) (atoll.Snapshot, error) {
	want := id
	if n, err := atoll.NormalizeID(id); err == nil {
		want = n
	}
	all, err := atoll.Snapshots(ctx, p.Provider)
	if err != nil {
		return atoll.Snapshot{}, err
	}
	i := slices.IndexFunc(all, func(s atoll.Snapshot) bool { return s.ID == want })
	switch {
	case i < 0:
		return atoll.Snapshot{}, atoll.E(op, id, atoll.ErrNotExist, nil)
	case !a.May(all[i].Spec.Project):
		return atoll.Snapshot{}, p.hide(ctx, op, all[i].Spec.Project, id, atoll.ErrNotExist)
	}
	return all[i], nil
}

// Snapshots implements atoll.SnapshotStore.
func (p *provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	all, err := atoll.Snapshots(ctx, p.Provider)
	return only(all, func(s atoll.Snapshot) string { return cmp.Or(s.Spec.Project, atoll.DefaultProject) }, auth.AccountFrom(ctx).May), err
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	if a, ok := bound(ctx); ok {
		if _, err := p.snapshot(ctx, a, "remove snapshot", id); err != nil {
			return err
		}
	}
	return atoll.RemoveSnapshot(ctx, p.Provider, id)
}

var _ atoll.SnapshotStore = (*provider)(nil)
