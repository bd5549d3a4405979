package config

import (
	dagger "github.com/seed46cd37a8/atoll/agent/jobs/dagger/settings"
)

// Compute selects the backend that runs the programs of agents in compute mode.
type Compute struct {
	Backend string `yaml:"backend" form:"sandbox dagger" doc:"backend that runs the programs of sandbox_run: sandbox uses a sandbox of the provider for each, dagger a container of a Dagger engine"`
}

// Dagger are the settings of the backend dagger.
type Dagger = dagger.Settings

func defaultCompute() Compute { return Compute{Backend: "sandbox"} }
