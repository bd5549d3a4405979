package config

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretref"
	"github.com/seed46cd37a8/atoll/plugin"
	kubernetes "github.com/seed46cd37a8/atoll/provider/kubernetes/settings"
	modal "github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// Secret is a reference to a secret.
type Secret = secretref.Ref

// Kubernetes are the settings of the provider kubernetes.
type Kubernetes = kubernetes.Settings

// Modal are the settings of the provider modal.
type Modal = modal.Settings

// pluginTime is how long a plugin's program may take to open its provider.
const pluginTime = 3 * time.Minute

// openPlugin returns the open function of a provider whose program is atoll-NAME. table
// returns its settings.
func openPlugin(name string, table func(cfg *Config) any) func(cfg *Config, opts Options) (atoll.Provider, error) {
	return func(cfg *Config, opts Options) (atoll.Provider, error) {
		encoded, err := plugin.EncodeSettings(table(cfg))
		if err != nil {
			return nil, atoll.Errorf("open", name, atoll.ErrInvalid, "%s.%w", name, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), pluginTime)
		defer cancel()
		return plugin.Open(ctx, plugin.Options{
			Name: name, StateDir: cfg.StateDir, Settings: encoded, Guest: cfg.Docker.Guest, Log: opts.Log,
			Resources: atoll.Resources{Memory: cfg.Resources.Memory, CPUs: cfg.Resources.CPUs, Processes: cfg.Resources.Processes, Disk: cfg.Resources.Disk},
			Probing:   !slices.Contains(cfg.ProviderNames(), name),
			Place:     cfg.server != nil,
		})
	}
}

// placeOf names what has the sandboxes of a provider, so that programs that reach the same
// ones have the same name for it: a Docker Engine in the network, a cluster, else this state
// directory.
func (c *Config) placeOf(ctx context.Context, name string, p atoll.Provider) (string, error) {
	if placer, ok := p.(plugin.Placer); ok {
		place, err := placer.Place(ctx)
		if err != nil {
			return "", err
		}
		id, err := c.stateID()
		return cmp.Or(place, id), err
	}
	if name == "docker" && c.Docker.Host != "" && !isUnix(c.Docker.Host) {
		return c.Docker.Host, nil
	}
	return c.stateID()
}
