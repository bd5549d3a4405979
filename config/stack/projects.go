package stack

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// refuseSpec returns a function that refuses specs of accounts of projects. projects has the providers of some projects.
func (b *Builder) refuseSpec(projects map[string]string) func(ctx context.Context, spec *atoll.Spec) error {
	policy := &authz.ImagePolicy{}
	for _, image := range b.Projects.Images {
		if image == config.PublicImages {
			policy.Public = authz.PublicRegistries()
		} else {
			policy.Allow = append(policy.Allow, image)
		}
	}
	return func(ctx context.Context, spec *atoll.Spec) error {
		name := cmp.Or(spec.Provider, projects[spec.Project], b.Provider)
		e, ok := config.BuiltIn(name)
		if !ok { // a plugin
			e = config.Entry{Name: name, Pulls: true, Elsewhere: true}
		}
		if spec.Snapshot != "" && spec.Provider == "" {
			e.Elsewhere = false // the provider of the snapshot may be on this machine
		}
		if e.Unisolated {
			return atoll.Errorf("create", spec.Name, atoll.ErrDenied,
				"the provider %s runs processes of the server's user on its machine: requires role %s", e.Name, auth.RoleAdmin)
		}
		if auth.HasTrustedSpec(ctx) {
			return nil
		}
		if e.HostKernel && projects[spec.Project] != e.Name && !b.namesProvider(e.Name) {
			return atoll.Errorf("create", spec.Name, atoll.ErrDenied,
				"sandboxes of the provider %s share the kernel of the server's machine: requires role %s; the operator can allow it with providers", e.Name, auth.RoleAdmin)
		}
		if err := b.checkLimits(e, spec.Resources); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.ErrDenied, "%w (requires role %s)", err, auth.RoleAdmin)
		}
		if spec.Image == "" || !e.Pulls || slices.Contains(b.configuredImages(e, spec.Project), spec.Image) {
			return nil
		}
		if err := policy.Check(ctx, spec.Image); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.KindOf(err), "%w; the operator can allow it with projects.images", err)
		}
		return nil
	}
}

// namesProvider reports whether the configuration names a provider itself, and not just by default.
func (b *Builder) namesProvider(name string) bool {
	return b.Provider == name || b.Origin("providers") != "default" && slices.Contains(b.Providers, name)
}

// configuredImages returns the images that the operator has named for sandboxes of a project at e, and those that the
// tools of agents have short names for.
func (b *Builder) configuredImages(e config.Entry, project string) []string {
	images := []string{e.DefaultImage(b.Config)}
	for _, pool := range b.Pools {
		if cmp.Or(pool.Project, b.Project) == project && cmp.Or(pool.Provider, b.Provider) == e.Name {
			images = append(images, pool.Image)
		}
	}
	shortcuts, _ := b.Tools.ImageShortcuts() // Load has checked them
	for _, name := range append(slices.Collect(maps.Keys(shortcuts)), "linux", "python", "node") {
		if image, err := (frontmatter.Images{Shortcuts: shortcuts}).Resolve(name); err == nil {
			images = append(images, image)
		}
	}
	return images
}

// checkLimits returns an error if r exceeds the limits of accounts of projects in sandboxes of the provider e.
func (b *Builder) checkLimits(e config.Entry, r atoll.Resources) error {
	most := b.Projects
	if here := !e.Elsewhere && e.Host(b.Config) == ""; here {
		most.Memory = cmp.Or(most.Memory, atoll.Bytes(machineMemory()/2&^(1<<20-1))) // in whole megabytes
		most.CPUs = cmp.Or(most.CPUs, float64(runtime.NumCPU()))
	}
	for _, l := range []struct {
		name      string
		ask, most float64
		text      string
	}{
		{"memory", float64(r.Memory), float64(most.Memory), most.Memory.String()},
		{"cpus", r.CPUs, most.CPUs, fmt.Sprint(most.CPUs)},
		{"processes", float64(r.Processes), float64(most.Processes), fmt.Sprint(most.Processes)},
		{"disk", float64(r.Disk), float64(most.Disk), most.Disk.String()},
	} {
		switch {
		case l.most == atoll.Unlimited || l.ask == 0:
		case l.most == 0 && l.ask == atoll.Unlimited:
			return fmt.Errorf("resources: no limit of %s is not allowed; set one", l.name)
		case l.most > 0 && (l.ask == atoll.Unlimited || l.ask > l.most):
			return fmt.Errorf("resources: the greatest limit of %s is %s, see projects.%s", l.name, l.text, l.name)
		}
	}
	return nil
}
