package config

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/compute"
	"github.com/seed46cd37a8/atoll/compute/dagger"
)

// Compute says what runs the programs of agents in compute mode.
type Compute struct {
	Backend string `yaml:"backend" form:"sandbox dagger" doc:"what runs the programs of sandbox_run: sandbox is a sandbox of the provider for each, dagger a container of a Dagger engine"`
}

// Dagger are the settings of the backend dagger.
type Dagger struct {
	CLI         string         `yaml:"cli" form:"path" doc:"Dagger's CLI; when this and engine are empty the session that atoll was started in (DAGGER_SESSION_PORT), else dagger in PATH. None is fetched"`
	Engine      string         `yaml:"engine" doc:"where the CLI finds the engine: unix:///path, tcp://host:port or docker-container://name; what the CLI does by itself when empty: _EXPERIMENTAL_DAGGER_RUNNER_HOST, else an engine that it starts with docker"`
	OpenNetwork bool           `yaml:"open_network" doc:"run programs that are to have a network: they reach what the engine's containers do, which may be its host and all around it"`
	Patience    atoll.Duration `yaml:"patience" doc:"how long the engine may take to answer, like 2m: the CLI may have to pull it"`
}

func defaultCompute() Compute { return Compute{Backend: "sandbox"} }

func defaultDagger() Dagger { return Dagger{Patience: atoll.Duration(dagger.DefaultPatience)} }

// check calls bad with the key of each value that makes no sense.
func (d Dagger) check(bad func(key string, err error)) {
	if d.Patience <= 0 {
		bad("dagger.patience", fmt.Errorf("%s: must be positive", d.Patience))
	}
}

// compute is the backend that is set, nil for sandboxes of the provider.
func (c *Config) compute() compute.Backend {
	if c.Compute.Backend != "dagger" {
		return nil
	}
	return c.dagger()
}

func (c *Config) dagger() *dagger.Backend {
	d := c.Dagger
	return dagger.New(dagger.Options{
		CLI: d.CLI, Engine: d.Engine, OpenNetwork: d.OpenNetwork, Patience: time.Duration(d.Patience),
		Dir:   filepath.Join(c.StateDir, "dagger"),
		Guest: func() ([]byte, error) { return guestProgram(c.Docker.Guest, c.StateDir) },
	})
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
	return "dagger", true, c.dagger().Probe(ctx)
}
