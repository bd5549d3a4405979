package modal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/internal/secretref"
	"github.com/seed46cd37a8/atoll/provider/modal/settings"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// Open returns the provider for the settings of a configuration, for package plugin.
func Open(_ context.Context, r plugin.Request) (atoll.Provider, error) {
	m := settings.Default()
	if err := plugin.DecodeSettings(r.Settings, &m); err != nil {
		return nil, atoll.E("open", "modal", atoll.ErrInvalid, err)
	}
	opts, err := optionsOf(&m)
	if err != nil {
		return nil, atoll.E("open", "modal", atoll.ErrInvalid, err)
	}
	opts.Guest = sync.OnceValues(func() ([]byte, error) { return guestprogram.Load(cmp.Or(m.Guest, r.Guest), r.StateDir) })
	opts.Log = r.Log
	return New(*opts)
}

// optionsOf returns the Options that the settings, and the configuration file of Modal's own
// programs, describe.
func optionsOf(m *settings.Settings) (*Options, error) {
	from, err := readProfile(m)
	if err != nil {
		return nil, err
	}
	secret, err := m.TokenSecret.Reveal()
	if err != nil {
		return nil, err
	}
	buckets, err := m.ParseBuckets()
	return &Options{
		TokenID: cmp.Or(m.TokenID, from.TokenID), TokenSecret: cmp.Or(secret, from.TokenSecret),
		Environment: cmp.Or(m.Environment, from.Environment), ServerURL: cmp.Or(m.ServerURL, from.ServerURL),
		App: m.App, AppPerProject: m.AppPerProject, Prefix: m.Prefix,
		Image: m.Image, Commands: m.Commands, RegistrySecret: m.RegistrySecret, Secrets: m.Secrets, Buckets: buckets,
		GPU: m.GPU, Cloud: m.Cloud, Regions: m.Regions, Ephemeral: m.Ephemeral, Tunnels: Tunnels(m.Tunnels),
		Patience: time.Duration(m.Patience),
	}, err
}

// A profile is a table of ~/.modal.toml, which Modal's own programs write.
type profile struct {
	TokenID     string `toml:"token_id"`
	TokenSecret string `toml:"token_secret"`
	Environment string `toml:"environment"`
	ServerURL   string `toml:"server_url"`
	Active      bool   `toml:"active"`
}

// readProfile returns the table to use. It is empty if there is no file and no setting names one.
func readProfile(m *settings.Settings) (profile, error) {
	home, err := os.UserHomeDir()
	file := filepath.Join(home, ".modal.toml")
	var data []byte
	if err == nil {
		data, err = secretref.ReadFile(file)
	}
	switch none := home == "" || errors.Is(err, fs.ErrNotExist); {
	case err == nil:
	case none && m.Profile == "":
		return profile{}, nil
	case none:
		return profile{}, fmt.Errorf("modal.profile %q: there is no %s: run modal token new, or set modal.token_id and modal.token_secret", m.Profile, file)
	default:
		return profile{}, err
	}
	var all map[string]profile
	if err := toml.Unmarshal(data, &all); err != nil {
		return profile{}, fmt.Errorf("%s: %w: fix it, or move it away and run modal token new", file, err)
	}
	if m.Profile != "" {
		p, ok := all[m.Profile]
		if !ok {
			return p, fmt.Errorf("modal.profile %q: there is no such table in %s", m.Profile, file)
		}
		return p, nil
	}
	for _, p := range all {
		if p.Active {
			return p, nil
		}
	}
	return profile{}, nil
}
