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

// Compute says what runs the programs of agents in compute mode.
type Compute struct {
	Backend string `yaml:"backend" form:"sandbox dagger" doc:"what runs the programs of sandbox_run: sandbox is a sandbox of the provider for each, dagger a container of a Dagger engine"`
}

// Dagger are the settings of the backend dagger.
type Dagger = dagger.Settings

func defaultCompute() Compute { return Compute{Backend: "sandbox"} }

// compute is the backend that is set, nil for sandboxes of the provider.
func (c *Config) compute() jobs.Backend {
	if c.Compute.Backend != "dagger" {
		return nil
	}
	return c.dagger()
}

// dagger returns the backend of the program atoll-dagger, which its first use starts.
func (c *Config) dagger() remote.Backend {
	encoded, err := plugin.EncodeSettings(c.Dagger)
	if err != nil {
		panic(err) // the settings have no secret, and nothing else can fail
	}
	program := plugin.NewProgram(plugin.Options{Name: "dagger", StateDir: c.StateDir, Settings: encoded, Guest: c.Docker.Guest})
	return remote.NewClient(program.HTTPClient(), program.Close)
}

// ProbeCompute says whether the backend called name, which is not sandboxes of the
// provider, can run the programs of sandbox_run here. One that is not used is not tried.
func (c *Config) ProbeCompute(ctx context.Context) (name string, used bool, p atoll.Probe) {
	if c.Compute.Backend != "dagger" {
		return "dagger", false, atoll.Probe{
			Reason: fmt.Sprintf("not configured: compute.backend is %s", c.Compute.Backend),
			Fix:    "set compute.backend: dagger, and dagger.engine to where Dagger's engine is, to have the programs of sandbox_run there",
		}
	}
	backend := c.dagger()
	p = backend.Probe(ctx)
	if err := backend.Close(); err != nil && p.OK {
		p = atoll.Probe{Reason: err.Error()}
	}
	return "dagger", true, p
}
