package stack

import (
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// workspaceOptions returns the options of the workspace layer.
func (b *Builder) workspaceOptions() workspace.Options {
	return workspace.Options{
		Dir: filepath.Join(b.StateDir, "workspaces"), Timeout: time.Duration(b.Clone.Timeout), Limit: b.Clone.Limit,
	}
}
