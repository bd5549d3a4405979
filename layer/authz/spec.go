package authz

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// checkSpec returns a copy of spec with the caller's project. It returns an error if the caller
// may not use the project, or if the spec gives access to anything outside of it.
func (p *provider) checkSpec(ctx context.Context, op string, spec *atoll.Spec) (*atoll.Spec, error) {
	a, ok := boundedAccount(ctx)
	if !ok {
		return spec, nil
	}
	project, err := p.checkProject(ctx, op, spec.Project, spec.Name)
	if err != nil {
		return nil, err
	}
	c := *spec.Clone()
	c.Project = project
	for i := range c.Secrets {
		if c.Secrets[i].Value != "" { // or the server would read its own file or variable later
			c.Secrets[i].Source = ""
		}
	}
	if !auth.HasTrustedSpec(ctx) {
		if why := describeEscape(&c); why != "" {
			return nil, p.denyCall(ctx, op, project, c.Name, "%s (requires role %s)", why, auth.RoleAdmin)
		}
	}
	if err := p.opts.Refuse(ctx, &c); err != nil {
		if atoll.KindOf(err) == atoll.ErrDenied {
			p.opts.Denied(ctx, op, project, c.Name)
		}
		return nil, err
	}
	if err := p.checkSources(ctx, a, op, &c); err != nil {
		return nil, err
	}
	return &c, nil
}

// describeEscape describes the first part of s that reaches beyond its project, or returns "". A
// sandbox with access to the server's machine or its networks has access to other projects.
func describeEscape(s *atoll.Spec) string {
	for _, m := range s.Mounts {
		if m.Type == atoll.MountBind {
			return "mount " + m.Target + ": directories of the server's machine are not part of a project"
		}
	}
	scheme, _, _ := strings.Cut(s.Image, ":")
	if strings.HasPrefix(s.Image, "/") || strings.HasPrefix(s.Image, ".") || slices.Contains([]string{"oci", "docker-archive", "dir", "file"}, scheme) {
		return "image " + s.Image + ": files of the server's machine are not part of a project"
	}
	for _, port := range s.Ports {
		if port.HostPort != 0 {
			return fmt.Sprintf("host port %d: ports of the machine are shared by all projects; publish %d without a host port", port.HostPort, port.Port)
		}
	}
	if s.Workspace.Source != "" {
		return "workspace: a source may be anything that the server can read; use the name of an existing workspace"
	}
	switch n := s.Network; {
	case n.Mode == atoll.NetworkNamed:
		return "network " + n.Name + ": the network is not part of a project"
	case n.Mode == atoll.NetworkOn && len(n.Allow) > 0:
		return "network: with mode on, allow opens the networks of the server"
	default:
		for _, to := range n.Allow {
			if why := describeAllow(to); why != "" {
				return why
			}
		}
	}
	return describeGateway(s)
}

// describeAllow describes why an entry of Allow reaches beyond a project, or returns "". Wildcards and sets open only public addresses.
func describeAllow(to string) string {
	entries, err := egress.Parse(to)
	if err != nil {
		return "" // the provider says why
	}
	for _, e := range entries {
		switch {
		case e.Host == "":
			return "network: allow " + to + " may be an address in the server's networks"
		case !e.Wildcard && !e.InSet:
			return "network: allow " + to + " may resolve to the server's networks; use *." + e.Host
		}
	}
	return ""
}

// describeGateway describes how the rules and secrets of s reach beyond a project, or returns "".
func describeGateway(s *atoll.Spec) string {
	for _, r := range s.Network.Rules {
		if r.Redirect != "" {
			return "rule " + r.Match + ": a redirect may lead to the server's networks"
		}
	}
	for _, one := range s.Secrets {
		if one.Value == "" {
			return "secret " + one.Name + ": a source is on the server's machine, which is not part of a project; send the value"
		}
	}
	return ""
}

// checkSources returns an error if s starts from a snapshot of another project. Providers ensure
// that a sandbox does not get the data volume of another project.
func (p *provider) checkSources(ctx context.Context, a auth.Account, op string, s *atoll.Spec) error {
	if s.Snapshot == "" {
		return nil
	}
	_, err := p.findSnapshot(ctx, a, op, s.Snapshot)
	return err
}

// findSnapshot returns a snapshot that the caller may use.
func (p *provider) findSnapshot(ctx context.Context, a auth.Account, op, id string) (atoll.Snapshot, error) {
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
	case !a.CanUse(all[i].Spec.Project):
		return atoll.Snapshot{}, p.hideObject(ctx, op, all[i].Spec.Project, id, atoll.ErrNotExist)
	}
	return all[i], nil
}

// Snapshots implements atoll.SnapshotStore.
func (p *provider) Snapshots(ctx context.Context) ([]atoll.Snapshot, error) {
	all, err := atoll.Snapshots(ctx, p.Provider)
	return filterOwned(all, func(s atoll.Snapshot) string { return cmp.Or(s.Spec.Project, atoll.DefaultProject) }, auth.AccountFrom(ctx).CanUse), err
}

// RemoveSnapshot implements atoll.SnapshotStore.
func (p *provider) RemoveSnapshot(ctx context.Context, id string) error {
	if a, ok := boundedAccount(ctx); ok {
		if _, err := p.findSnapshot(ctx, a, "remove snapshot", id); err != nil {
			return err
		}
	}
	return atoll.RemoveSnapshot(ctx, p.Provider, id)
}

var _ atoll.SnapshotStore = (*provider)(nil)
