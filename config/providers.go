package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// ProviderNames returns the names of the configured providers, the default one first.
func (c *Config) ProviderNames() []string {
	names := []string{c.Provider}
	for _, name := range c.Providers {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ProviderOf returns the provider that new sandboxes of a project should name: the one of a flag or the environment,
// otherwise the one of the project, otherwise the one of the file. "" leaves the choice to the stack.
func (c *Config) ProviderOf(project string) string {
	from := c.Origin("provider")
	if strings.HasPrefix(from, "--") || isVariable(from) {
		return c.Provider
	}
	projects, _ := c.ParseProjectProviders() // Load has checked them
	if name := projects[project]; name != "" {
		return name
	}
	if c.IsSet("provider") {
		return c.Provider
	}
	return ""
}

// AllowOf returns what all sandboxes of a project with a list of allowed hosts reach.
func (c *Config) AllowOf(project string) (entries []string) {
	for _, text := range c.ProjectAllow {
		if of, entry, ok := strings.Cut(text, "="); ok && of == project {
			entries = append(entries, entry)
		}
	}
	return entries
}

// ParseProjectProviders returns the providers of projects.
func (c *Config) ParseProjectProviders() (map[string]string, error) {
	projects := map[string]string{}
	for _, text := range c.ProjectProviders {
		project, name, ok := strings.Cut(text, "=")
		switch _, twice := projects[project]; {
		case !ok || !atoll.ValidName(project):
			return nil, fmt.Errorf("%q: write it like PROJECT=PROVIDER", text)
		case !slices.Contains(c.ProviderNames(), name):
			return nil, fmt.Errorf("%q: the providers are %s: add it to providers", text, strings.Join(c.ProviderNames(), ", "))
		case twice:
			return nil, fmt.Errorf("%q: the project already has a provider", text)
		}
		projects[project] = name
	}
	return projects, nil
}
