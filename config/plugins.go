package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/program"
	"github.com/seed46cd37a8/atoll/internal/secretref"
	kubernetes "github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
	modal "github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// A Secret is a reference to a secret.
type Secret = secretref.Ref

// NewSecret returns a Secret that holds the secret itself.
func NewSecret(value string) Secret { return secretref.New(value) }

// Kubernetes has the settings of the provider kubernetes.
type Kubernetes = kubernetes.Settings

// Modal has the settings of the provider modal.
type Modal = modal.Settings

// A Plugin configures the provider of a program that is not Atoll's.
type Plugin struct {
	Program  string   `yaml:"program" form:"path" doc:"path of the plugin's program; empty means atoll-NAME beside atoll or in PATH"`
	Settings []string `yaml:"settings" doc:"settings that are passed to the program: KEY=VALUE"`
}

// ownPlugin returns the provider of Atoll's program atoll-NAME. table returns its settings, and image its default image.
func ownPlugin(name string, table func(cfg *Config) any, image func(cfg *Config) string) Entry {
	return Entry{Name: name, Named: true, Pulls: true, Elsewhere: true, Table: table, image: image}
}

// notPlugins are the names of programs beside atoll that are not providers.
var notPlugins = []string{"dagger", "engine", "guest", "provider-test", "server"}

// pluginEntry returns the provider of the plugin called name, if the configuration names the plugin or its program
// exists.
func (c *Config) pluginEntry(name string) (Entry, bool) {
	if !atoll.ValidName(name) || slices.Contains(notPlugins, name) {
		return Entry{}, false
	}
	if _, configured := c.Plugins[name]; !configured {
		if _, err := program.Find(name); err != nil {
			return Entry{}, false
		}
	}
	return Entry{Name: name, Named: true}, true
}

// ParseSettings returns the settings as an object.
func (p *Plugin) ParseSettings() (json.RawMessage, error) {
	all := map[string]string{}
	for _, text := range p.Settings {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q: write it like KEY=VALUE", text)
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("%q: %s is already set", text, key)
		}
		all[key] = value
	}
	return json.Marshal(all)
}

// checkPlugins calls bad with the key of each invalid value.
func (c *Config) checkPlugins(bad func(key string, err error)) {
	for name, p := range c.Plugins {
		_, err := p.ParseSettings()
		bad("plugin."+name+".settings", err)
		if _, own := BuiltIn(name); own || slices.Contains(notPlugins, name) {
			bad("plugin."+name+".settings", fmt.Errorf("the name %s is reserved: use another name for the plugin", name))
		}
	}
}
