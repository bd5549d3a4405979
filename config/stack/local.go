package stack

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

func openLocal(b *Builder, opts Options) (atoll.Provider, error) {
	return local.New(local.Options{Dir: filepath.Join(b.StateDir, "local"), Log: opts.Log})
}
