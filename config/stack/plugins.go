package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// pluginTimeout is the time that a plugin's program may take to open its provider.
const pluginTimeout = 3 * time.Minute

// Suite returns the settings of the conformance suite for the plugin called name. Kinds: ErrInvalid (no plugin has
// that name, or its settings are invalid).
func (b *Builder) Suite(name string) (plugin.Suite, error) {
	s := plugin.Suite{Name: name, Guest: b.Docker.Guest}
	e, err := b.FindProvider(name)
	_, own := config.BuiltIn(name)
	switch {
	case err != nil:
	case e.Table != nil:
		s.Settings, err = plugin.EncodeSettings(e.Table(b.Config))
	case own:
		err = errors.New("the provider is built into atoll, and tested with it: name a plugin")
	default:
		p := cmp.Or(b.Plugins[name], &config.Plugin{})
		s.Program = p.Program
		s.Settings, err = p.ParseSettings()
	}
	if err != nil {
		return s, atoll.E("test", name, atoll.ErrInvalid, err)
	}
	return s, nil
}

// startPlugin opens the provider of the program at path, or of atoll-NAME if that is empty.
func (b *Builder) startPlugin(name, path string, settings json.RawMessage, opts Options) (atoll.Provider, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pluginTimeout)
	defer cancel()
	return plugin.Open(ctx, plugin.Options{
		Name: name, Path: path, StateDir: b.StateDir, Settings: settings, Guest: b.Docker.Guest, Log: opts.Log,
		Resources: atoll.Resources{Memory: b.Resources.Memory, CPUs: b.Resources.CPUs, Processes: b.Resources.Processes, Disk: b.Resources.Disk},
		Probing:   !slices.Contains(b.ProviderNames(), name),
		Place:     b.server != nil,
	})
}

// openPlugin opens the provider of a plugin's program.
func (b *Builder) openPlugin(e config.Entry, opts Options) (atoll.Provider, error) {
	if e.Table != nil { // one of Atoll's own
		settings, err := plugin.EncodeSettings(e.Table(b.Config))
		if err != nil {
			return nil, atoll.Errorf("open", e.Name, atoll.ErrInvalid, "%s.%w", e.Name, err)
		}
		return b.startPlugin(e.Name, "", settings, opts)
	}
	p := cmp.Or(b.Plugins[e.Name], &config.Plugin{})
	settings, err := p.ParseSettings()
	if err != nil {
		return nil, atoll.E("open", e.Name, atoll.ErrInvalid, err)
	}
	return b.startPlugin(e.Name, p.Program, settings, opts)
}

// placeOf names the place of a provider's sandboxes: a Docker Engine in the network, a cluster, or
// this state directory. Programs that reach the same sandboxes get the same name.
func (b *Builder) placeOf(ctx context.Context, name string, p atoll.Provider) (string, error) {
	if placer, ok := p.(plugin.Placer); ok {
		if place, err := placer.Place(ctx); place != "" || err != nil {
			return place, err
		}
	}
	e, _ := config.BuiltIn(name)
	if host := e.Host(b.Config); host != "" {
		return host, nil
	}
	return b.stateID()
}
