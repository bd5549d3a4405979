package config

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretref"
	kubernetes "github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
	modal "github.com/seed46cd37a8/atoll/provider/modal/settings"
	"github.com/seed46cd37a8/atoll/provider/plugin"
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

// pluginTimeout is the time that a plugin's program may take to open its provider.
const pluginTimeout = 3 * time.Minute

// ownPlugin returns the provider of Atoll's program atoll-NAME. table returns its settings, and image its default image.
func ownPlugin(name string, table func(cfg *Config) any, image func(cfg *Config) string) Entry {
	return Entry{Name: name, Named: true, pulls: true, elsewhere: true, table: table, image: image, open: func(cfg *Config, opts Options) (atoll.Provider, error) {
		settings, err := plugin.EncodeSettings(table(cfg))
		if err != nil {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "%s.%w", name, err)
		}
		return cfg.startPlugin(name, "", settings, opts)
	}}
}

// Suite returns the settings of the conformance suite for the plugin called name. Kinds: ErrInvalid (no plugin has
// that name, or its settings are invalid).
func (c *Config) Suite(name string) (plugin.Suite, error) {
	s := plugin.Suite{Name: name, Guest: c.Docker.Guest}
	e, err := c.findProvider(name)
	_, own := builtIn(name)
	switch {
	case err != nil:
	case e.table != nil:
		s.Settings, err = plugin.EncodeSettings(e.table(c))
	case own:
		err = errors.New("the provider is built into atoll, and tested with it: name a plugin")
	default:
		p := cmp.Or(c.Plugins[name], &Plugin{})
		s.Program = p.Program
		s.Settings, err = p.parseSettings()
	}
	if err != nil {
		return s, atoll.E("test", name, atoll.ErrInvalid, err)
	}
	return s, nil
}

// startPlugin opens the provider of the program at path, or of atoll-NAME if that is empty.
func (c *Config) startPlugin(name, path string, settings json.RawMessage, opts Options) (atoll.Provider, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pluginTimeout)
	defer cancel()
	return plugin.Open(ctx, plugin.Options{
		Name: name, Path: path, StateDir: c.StateDir, Settings: settings, Guest: c.Docker.Guest, Log: opts.Log,
		Resources: atoll.Resources{Memory: c.Resources.Memory, CPUs: c.Resources.CPUs, Processes: c.Resources.Processes, Disk: c.Resources.Disk},
		Probing:   !slices.Contains(c.ProviderNames(), name),
		Place:     c.server != nil,
	})
}

// notPlugins are the names of programs beside atoll that are not providers.
var notPlugins = []string{"guest", "dagger", "provider-test"}

// pluginEntry returns the provider of the plugin called name, if the configuration names the plugin or its program
// exists.
func (c *Config) pluginEntry(name string) (Entry, bool) {
	if !atoll.ValidName(name) || slices.Contains(notPlugins, name) {
		return Entry{}, false
	}
	if _, configured := c.Plugins[name]; !configured {
		if _, err := plugin.Find(name); err != nil {
			return Entry{}, false
		}
	}
	return Entry{Name: name, Named: true, open: openOther(name)}, true
}

// openOther returns the open function of a provider whose program is not Atoll's.
func openOther(name string) func(cfg *Config, opts Options) (atoll.Provider, error) {
	return func(cfg *Config, opts Options) (atoll.Provider, error) {
		p := cmp.Or(cfg.Plugins[name], &Plugin{})
		settings, err := p.parseSettings()
		if err != nil {
			return nil, atoll.E("open", name, atoll.ErrInvalid, err)
		}
		return cfg.startPlugin(name, p.Program, settings, opts)
	}
}

// parseSettings returns the settings as an object.
func (p *Plugin) parseSettings() (json.RawMessage, error) {
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
		_, err := p.parseSettings()
		bad("plugin."+name+".settings", err)
		if _, own := builtIn(name); own || slices.Contains(notPlugins, name) {
			bad("plugin."+name+".settings", fmt.Errorf("the name %s is reserved: use another name for the plugin", name))
		}
	}
}

// placeOf names the place of a provider's sandboxes: a Docker Engine in the network, a cluster, or
// this state directory. Programs that reach the same sandboxes get the same name.
func (c *Config) placeOf(ctx context.Context, name string, p atoll.Provider) (string, error) {
	if placer, ok := p.(plugin.Placer); ok {
		if place, err := placer.Place(ctx); place != "" || err != nil {
			return place, err
		}
	}
	if e, _ := builtIn(name); e.place != nil {
		if place := e.place(c); place != "" {
			return place, nil
		}
	}
	return c.stateID()
}
