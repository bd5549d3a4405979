package config

import (
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Clone limits the clone of a workspace.
type Clone struct {
	Timeout atoll.Duration `yaml:"timeout" doc:"time limit for cloning a git repository, like 30m"`
	Limit   atoll.Bytes    `yaml:"limit" doc:"size limit of a clone, like 16g"`
}

func defaultClone() Clone {
	return Clone{Timeout: atoll.Duration(workspace.DefaultTimeout), Limit: workspace.DefaultLimit}
}

// checkValues calls bad with the key of each invalid value.
func (c Clone) checkValues(bad func(key string, err error)) {
	if c.Timeout <= 0 {
		bad("clone.timeout", fmt.Errorf("%s: must be positive", c.Timeout))
	}
	if c.Limit <= 0 {
		bad("clone.limit", fmt.Errorf("%s: must be positive", c.Limit))
	}
}
