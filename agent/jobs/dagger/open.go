package dagger

import (
	"context"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs/dagger/settings"
	"github.com/seed46cd37a8/atoll/agent/jobs/remote"
	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// Open serves the backend with the settings of a configuration, for package plugin.
func Open(_ context.Context, r plugin.Request) (plugin.Service, error) {
	d := settings.Default()
	if err := plugin.DecodeSettings(r.Settings, &d); err != nil {
		return plugin.Service{}, atoll.E("open", "dagger", atoll.ErrInvalid, err)
	}
	b := New(Options{
		CLI: d.CLI, Engine: d.Engine, OpenNetwork: d.OpenNetwork, Patience: time.Duration(d.Patience),
		Dir:   filepath.Join(r.StateDir, "dagger"),
		Guest: func() ([]byte, error) { return guestprogram.Load(r.Guest, r.StateDir) },
	})
	return plugin.HTTPService(remote.Handler(b), b.Close), nil
}
