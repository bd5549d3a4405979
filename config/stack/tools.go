package stack

import (
	"maps"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/config"
)

// ToolOptions returns the options of the tools of agents in sandboxes of the provider. Kinds: ErrUnsupported
// (tools.enabled is false).
func (b *Builder) ToolOptions(provider string) (tools.Options, error) {
	if !b.Tools.Enabled {
		return tools.Options{}, atoll.Errorf("", "", atoll.ErrUnsupported, "sandbox service is not enabled (by %s)", b.Origin("tools.enabled"))
	}
	given, err := b.Tools.ImageShortcuts()
	if err != nil {
		return tools.Options{}, atoll.E("tools", "", atoll.ErrInvalid, err)
	}
	images := frontmatter.Images{Shortcuts: maps.Clone(given), Allow: b.Tools.AllowImages}
	e, _ := config.BuiltIn(provider)
	if _, ok := given[""]; !ok {
		switch {
		case e.OneImage:
		case e.DefaultImage(b.Config) == config.HostImage:
			images.Shortcuts[""] = config.HostImage // available at once
		default:
			images.Shortcuts[""], err = frontmatter.Images{Shortcuts: given}.Resolve("linux")
		}
	}
	// The programs of the machine itself are available at once and need no registry.
	own := images.Shortcuts[""] == config.HostImage || e.OneImage
	backend := b.computeBackend()
	own = own && backend == nil
	return tools.Options{Project: b.Project, Images: images, OwnPrograms: own, Compute: backend, Roots: b.Tools.Roots, Blocked: nonNil(b.Tools.BlockedPaths), OutputLimit: b.Tools.OutputLimit}, err
}

// nonNil returns paths, or an empty list instead of nil, which would mean the default.
func nonNil(paths []string) []string {
	if paths == nil {
		return []string{}
	}
	return paths
}
