package config

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// Clone says what the clone of a workspace may cost.
type Clone struct {
	Timeout atoll.Duration `yaml:"timeout" doc:"how long a git repository may take to be cloned, like 30m"`
	Limit   atoll.Bytes    `yaml:"limit" doc:"how large a clone may become, like 16g"`
}

func defaultClone() Clone {
	return Clone{Timeout: atoll.Duration(workspace.DefaultTimeout), Limit: workspace.DefaultLimit}
}

// check calls bad with the key of each value that makes no sense.
func (c Clone) check(bad func(key string, err error)) {
	if c.Timeout <= 0 {
		bad("clone.timeout", fmt.Errorf("%s: must be positive", c.Timeout))
	}
	if c.Limit <= 0 {
		bad("clone.limit", fmt.Errorf("%s: must be positive", c.Limit))
	}
}

// workspaces is where workspaces are kept, and what they may cost.
func (c *Config) workspaces() workspace.Options {
	return workspace.Options{
		Dir: filepath.Join(c.StateDir, "workspaces"), Timeout: time.Duration(c.Clone.Timeout), Limit: c.Clone.Limit,
	}
}
