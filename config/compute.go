package config

import (
	"context"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	dagger "github.com/seed46cd37a8/atoll/agent/jobs/dagger/settings"
	"github.com/seed46cd37a8/atoll/agent/jobs/remote"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// Compute selects the backend that runs the programs of agents in compute mode.
type Compute struct {
	Backend string `yaml:"backend" form:"sandbox dagger" doc:"backend that runs the programs of sandbox_run: sandbox uses a sandbox of the provider for each, dagger a container of a Dagger engine"`
}

// Dagger are the settings of the backend dagger.
type Dagger = dagger.Settings

func defaultCompute() Compute { return Compute{Backend: "sandbox"} }

// computeBackend returns the configured backend, or nil for sandboxes of the provider.
func (c *Config) computeBackend() jobs.Backend {
	if c.Compute.Backend != "dagger" {
		return nil
	}
	return c.daggerBackend()
}

// daggerBackend returns the backend of the program atoll-dagger, which starts at the first use.
func (c *Config) daggerBackend() remote.Backend {
	encoded, err := plugin.EncodeSettings(c.Dagger)
	if err != nil {
		panic(err) // the settings have no secret, so nothing can fail
	}
	program := plugin.NewProgram(plugin.Options{Name: "dagger", StateDir: c.StateDir, Settings: encoded, Guest: c.Docker.Guest})
	return remote.NewClient(program.HTTPClient(), program.Close)
}

// ProbeCompute reports whether the compute backend dagger can run the programs of sandbox_run here. It does not try
// an unused backend.
func (c *Config) ProbeCompute(ctx context.Context) (name string, used bool, p atoll.Probe) {
	if c.Compute.Backend != "dagger" {
		return "dagger", false, atoll.Probe{
			Reason: fmt.Sprintf("not configured: compute.backend is %s", c.Compute.Backend),
			Fix:    "to run the programs of sandbox_run in Dagger, set compute.backend: dagger, and dagger.engine to the address of its engine",
		}
	}
	backend := c.daggerBackend()
	p = backend.Probe(ctx)
	if err := backend.Close(); err != nil && p.OK {
		p = atoll.Probe{Reason: err.Error()}
	}
	return "dagger", true, p
}
