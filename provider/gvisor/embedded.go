//go:build linux && embedengine

package gvisor

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll/internal/engineprogram"
)

// ownEngine returns the path of the executable of supervisors, which this program has inside. It is for this process
// alone. dir is the provider's directory.
func ownEngine(dir string) (string, error) {
	return engineprogram.GVisor.Path(filepath.Join(dir, "engine"))
}

// slowEngine is a note for people about this program; "" for none.
const slowEngine = ""
