package config

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// publicImages is the value of projects.images that stands for the images that everybody may have.
const publicImages = "public"

// Projects limits what accounts and keys with the role project may ask for.
type Projects struct {
	Images    []string    `yaml:"images" doc:"images that accounts of projects may use besides the ones in this configuration: public for those that well-known registries give to everybody; or a registry or repository, like registry.example.com or ghcr.io/acme, whose images are pulled with this machine's credentials"`
	Memory    atoll.Bytes `yaml:"memory" doc:"greatest memory limit of a sandbox of such an account, like 8g; 0 for half of this machine's memory, or any limit in Kubernetes and at Modal; -1 for no limit"`
	CPUs      float64     `yaml:"cpus" doc:"greatest CPU limit of such a sandbox; 0 for the CPUs of this machine, or any limit in Kubernetes and at Modal; -1 for no limit"`
	Processes int         `yaml:"processes" doc:"greatest process limit of such a sandbox; -1 for no limit"`
	Disk      atoll.Bytes `yaml:"disk" doc:"greatest limit of files that such a sandbox writes outside of volumes; -1 for no limit"`
}

func defaultProjects() Projects {
	return Projects{Images: []string{publicImages}, Processes: 8192, Disk: 64 << 30}
}

// checkValues calls bad with the key of each invalid value.
func (p Projects) checkValues(bad func(key string, err error)) {
	for _, image := range p.Images {
		if _, err := name.NewRepository(image + "/x"); image != publicImages && (err != nil || image != strings.Trim(image, "/") || strings.Contains(image, "//")) {
			bad("projects.images", fmt.Errorf("%q: write it like public, registry.example.com or ghcr.io/acme/app, without a tag", image))
		}
	}
	for key, n := range map[string]float64{"memory": float64(p.Memory), "cpus": p.CPUs, "processes": float64(p.Processes), "disk": float64(p.Disk)} {
		if n < 0 && n != atoll.Unlimited {
			bad("projects."+key, fmt.Errorf("%v: must be positive, or -1 for no limit", n))
		}
	}
}

// refuseSpec returns a function that refuses specs of accounts of projects. projects has the providers of some projects.
func (c *Config) refuseSpec(projects map[string]string) func(ctx context.Context, spec *atoll.Spec) error {
	policy := &authz.ImagePolicy{}
	for _, image := range c.Projects.Images {
		if image == publicImages {
			policy.Public = authz.PublicRegistries()
		} else {
			policy.Allow = append(policy.Allow, image)
		}
	}
	return func(ctx context.Context, spec *atoll.Spec) error {
		name := cmp.Or(spec.Provider, projects[spec.Project], c.Provider)
		e, ok := builtIn(name)
		if !ok { // a plugin
			e = Entry{Name: name, pulls: true, elsewhere: true}
		}
		if spec.Snapshot != "" && spec.Provider == "" {
			e.elsewhere = false // the provider of the snapshot may be on this machine
		}
		if e.unisolated {
			return atoll.Errorf("create", spec.Name, atoll.ErrDenied,
				"the provider %s runs processes on the server's machine without isolation: requires role %s", e.Name, auth.RoleAdmin)
		}
		if auth.HasTrustedSpec(ctx) {
			return nil
		}
		if err := c.checkLimits(e, spec.Resources); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.ErrDenied, "%w (requires role %s)", err, auth.RoleAdmin)
		}
		if spec.Image == "" || !e.pulls || slices.Contains(c.configuredImages(e, spec.Project), spec.Image) {
			return nil
		}
		if err := policy.Check(ctx, spec.Image); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.KindOf(err), "%w; the operator can allow it with projects.images", err)
		}
		return nil
	}
}

// configuredImages returns the images that the operator has named for sandboxes of a project at e, and those that the
// tools of agents have short names for.
func (c *Config) configuredImages(e Entry, project string) []string {
	images := []string{e.defaultImage(c)}
	for _, pool := range c.Pools {
		if cmp.Or(pool.Project, c.Project) == project && cmp.Or(pool.Provider, c.Provider) == e.Name {
			images = append(images, pool.Image)
		}
	}
	shortcuts, _ := c.Tools.imageShortcuts() // Load has checked them
	for _, name := range append(slices.Collect(maps.Keys(shortcuts)), "linux", "python", "node") {
		if image, err := (frontmatter.Images{Shortcuts: shortcuts}).Resolve(name); err == nil {
			images = append(images, image)
		}
	}
	return images
}

// checkLimits returns an error if r exceeds the limits of accounts of projects in sandboxes of the provider e.
func (c *Config) checkLimits(e Entry, r atoll.Resources) error {
	most := c.Projects
	if here := !e.elsewhere && (e.place == nil || e.place(c) == ""); here {
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
