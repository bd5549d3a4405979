package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// ProviderNames are those of the providers that there are, the default one
// first.
func (c *Config) ProviderNames() []string {
	names := []string{c.Provider}
	for _, name := range c.Providers {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ProviderOf is the provider that new sandboxes of a project are to name: the
// one that a flag or the environment gives, else the project's, else the one
// that the file gives; "" leaves it to whoever makes them.
func (c *Config) ProviderOf(project string) string {
	from := c.Origin("provider")
	if strings.HasPrefix(from, "--") || isVariable(from) {
		return c.Provider
	}
	projects, _ := c.projects() // checked by Load
	if name := projects[project]; name != "" {
		return name
	}
	if c.IsSet("provider") {
		return c.Provider
	}
	return ""
}

// projects reads ProjectProviders.
func (c *Config) projects() (map[string]string, error) {
	projects := map[string]string{}
	for _, text := range c.ProjectProviders {
		project, name, ok := strings.Cut(text, "=")
		switch _, twice := projects[project]; {
		case !ok || !atoll.ValidName(project):
			return nil, fmt.Errorf("%q: write it like PROJECT=PROVIDER", text)
		case !slices.Contains(c.ProviderNames(), name):
			return nil, fmt.Errorf("%q: the providers are %s: add it to providers", text, strings.Join(c.ProviderNames(), ", "))
		case twice:
			return nil, fmt.Errorf("%q: the project has a provider already", text)
		}
		projects[project] = name
	}
	return projects, nil
}
