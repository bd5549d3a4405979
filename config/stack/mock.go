package stack

import (
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

func openMock(b *Builder, opts Options) (atoll.Provider, error) {
	return mock.New(mock.Options{Dir: filepath.Join(b.StateDir, "mock"), Log: opts.Log})
}
