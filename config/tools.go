package config

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// Tools say what the tools of agents may do.
type Tools struct {
	Enabled bool `yaml:"enabled" alias:"STATION_SANDBOX_CODE_MODE_ENABLED" doc:"whether there are tools for agents: atoll mcp, and /mcp and /v1/tools of serve"`
	// Images are "NAME=IMAGE"; an empty name is the image of who names none.
	Images       []string `yaml:"images" doc:"images that agents have a short name for, in place of the usual ones and besides them: NAME=IMAGE, as in python=python:3.13"`
	AllowImages  []string `yaml:"allow_images" doc:"images that agents may use, as they are or by what they begin with: python:3.11-slim, ghcr.io/acme/*; empty for any"`
	Roots        []string `yaml:"roots" doc:"directories of a sandbox that the file tools work in; empty for the work directory"`
	BlockedPaths []string `yaml:"blocked_paths" doc:"files and directories of a sandbox that the file tools do not touch"`
}

func defaultTools() Tools { return Tools{Enabled: true, BlockedPaths: tools.DefaultBlocked()} }

// check calls bad with the key of each value that makes no sense.
func (t Tools) check(bad func(key string, err error)) {
	shortcuts, err := t.shortcuts()
	bad("tools.images", err)
	bad("tools.images", frontmatter.Images{Shortcuts: shortcuts}.Check())
	bad("tools.allow_images", frontmatter.Images{Allow: t.AllowImages}.Check())
	for key, paths := range map[string][]string{"tools.roots": t.Roots, "tools.blocked_paths": t.BlockedPaths} {
		for _, p := range paths {
			if !path.IsAbs(p) {
				bad(key, fmt.Errorf("%q: must be an absolute path", p))
			}
		}
	}
}

// shortcuts reads Images.
func (t Tools) shortcuts() (map[string]string, error) {
	all := map[string]string{}
	for _, text := range t.Images {
		name, image, ok := strings.Cut(text, "=")
		switch _, twice := all[name]; {
		case !ok || image == "" || strings.ContainsAny(name, " \t"):
			return nil, fmt.Errorf("%q: write it like NAME=IMAGE", text)
		case twice:
			return nil, fmt.Errorf("%q: %s stands for an image already", text, name)
		}
		all[name] = image
	}
	return all, nil
}

// ToolOptions are what the configuration gives the tools of agents, whose sandboxes
// the provider makes that is named. Kinds: ErrUnsupported (there are to be none).
func (c *Config) ToolOptions(provider string) (tools.Options, error) {
	if !c.Tools.Enabled {
		return tools.Options{}, atoll.Errorf("", "", atoll.ErrUnsupported, "sandbox service is not enabled (by %s)", c.Origin("tools.enabled"))
	}
	given, err := c.Tools.shortcuts()
	if err != nil {
		return tools.Options{}, atoll.E("tools", "", atoll.ErrInvalid, err)
	}
	images := frontmatter.Images{Shortcuts: maps.Clone(given), Allow: c.Tools.AllowImages}
	if _, ok := given[""]; !ok {
		switch provider {
		case "gvisor":
			images.Shortcuts[""] = "host" // is there at once
		case "local", "mock": // theirs is the only one
		default:
			images.Shortcuts[""], err = frontmatter.Images{Shortcuts: given}.Resolve("linux")
		}
	}
	// What the machine has itself is there at once, and needs no registry.
	own := images.Shortcuts[""] == "host" || provider == "local" || provider == "mock"
	backend := c.compute()
	own = own && backend == nil
	return tools.Options{Project: c.Project, Images: images, OwnPrograms: own, Compute: backend, Roots: c.Tools.Roots, Blocked: orNone(c.Tools.BlockedPaths)}, err
}

// orNone makes what lists nothing mean that.
func orNone(paths []string) []string {
	if paths == nil {
		return []string{}
	}
	return paths
}
