package config

import (
	"fmt"
	"path"
	"strings"

	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools/settings"
)

// Tools configures the tools of agents.
type Tools struct {
	Enabled bool `yaml:"enabled" alias:"STATION_SANDBOX_CODE_MODE_ENABLED" doc:"offer tools for agents: atoll mcp, and /mcp and /v1/tools of serve"`
	// Images are "NAME=IMAGE"; an empty name stands for the default image.
	Images       []string `yaml:"images" doc:"short names of images for agents, which replace or extend the usual ones: NAME=IMAGE, as in python=python:3.13"`
	AllowImages  []string `yaml:"allow_images" doc:"images that agents may use, as full names or prefixes: python:3.11-slim, ghcr.io/acme/*; empty allows any"`
	Roots        []string `yaml:"roots" doc:"directories of a sandbox that the file tools may use; empty means the work directory"`
	BlockedPaths []string `yaml:"blocked_paths" doc:"files and directories of a sandbox that the file tools never use"`
	OutputLimit  int      `yaml:"output_limit" doc:"bytes of output, of a file or of a list that one call of a tool returns, unless the agent asks for more or less"`
}

func defaultTools() Tools {
	return Tools{Enabled: true, BlockedPaths: settings.DefaultBlocked(), OutputLimit: settings.DefaultOutput}
}

// minOutputLimit is the least value of tools.output_limit: a few lines.
const minOutputLimit = 1000

// checkValues calls bad with the key of each invalid value.
func (t Tools) checkValues(bad func(key string, err error)) {
	shortcuts, err := t.ImageShortcuts()
	bad("tools.images", err)
	bad("tools.images", frontmatter.Images{Shortcuts: shortcuts}.Check())
	bad("tools.allow_images", frontmatter.Images{Allow: t.AllowImages}.Check())
	if t.OutputLimit < minOutputLimit {
		bad("tools.output_limit", fmt.Errorf("%d: must be at least %d", t.OutputLimit, minOutputLimit))
	}
	for key, paths := range map[string][]string{"tools.roots": t.Roots, "tools.blocked_paths": t.BlockedPaths} {
		for _, p := range paths {
			if !path.IsAbs(p) {
				bad(key, fmt.Errorf("%q: must be an absolute path", p))
			}
		}
	}
}

// ImageShortcuts returns the images by short name.
func (t Tools) ImageShortcuts() (map[string]string, error) {
	all := map[string]string{}
	for _, text := range t.Images {
		name, image, ok := strings.Cut(text, "=")
		switch _, twice := all[name]; {
		case !ok || image == "" || strings.ContainsAny(name, " \t"):
			return nil, fmt.Errorf("%q: write it like NAME=IMAGE", text)
		case twice:
			return nil, fmt.Errorf("%q: the name %s already stands for an image", text, name)
		}
		all[name] = image
	}
	return all, nil
}
