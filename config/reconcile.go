package config

import (
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/registry"
)

// Reconcile configures the repair of sandboxes that differ from the desired state.
type Reconcile struct {
	Every    atoll.Duration `yaml:"every" doc:"interval of reconciliation by serve, like 10m; 0 means only at its start"`
	Orphans  string         `yaml:"orphans" form:"remove keep" doc:"what to do with sandboxes of this state_dir without a record; their data volumes are retained"`
	Failed   string         `yaml:"failed" form:"keep restart rebuild" doc:"what to do with failed sandboxes"`
	Outdated string         `yaml:"outdated" form:"rebuild keep" doc:"what to do with sandboxes whose image name stands for a newer image; sandboxes in which commands run are retained"`
}

func defaultReconcile() Reconcile {
	return Reconcile{
		Every: atoll.Duration(10 * time.Minute), Orphans: string(registry.Remove), Failed: string(registry.Keep), Outdated: string(registry.Rebuild),
	}
}
