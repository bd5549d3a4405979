package config

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/workspace"
)

// Workspace says what a clone of a workspace may cost.
type Workspace struct {
	Timeout atoll.Duration `yaml:"timeout" doc:"how long a git repository may take to be cloned, like 30m"`
	Limit   atoll.Bytes    `yaml:"limit" doc:"how large a clone may become, like 16g"`
}

func defaultWorkspace() Workspace {
	return Workspace{Timeout: atoll.Duration(workspace.DefaultTimeout), Limit: workspace.DefaultLimit}
}

// check calls bad with the key of each value that makes no sense.
func (w Workspace) check(bad func(key string, err error)) {
	if w.Timeout <= 0 {
		bad("workspace.timeout", fmt.Errorf("%s: must be positive", w.Timeout))
	}
	if w.Limit <= 0 {
		bad("workspace.limit", fmt.Errorf("%s: must be positive", w.Limit))
	}
}

// workspaces is where workspaces are kept, and what they may cost.
func (c *Config) workspaces() workspace.Options {
	return workspace.Options{
		Dir: filepath.Join(c.StateDir, "workspaces"), Timeout: time.Duration(c.Workspace.Timeout), Limit: c.Workspace.Limit,
	}
}
