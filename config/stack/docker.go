package stack

import (
	"path/filepath"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

func openDocker(b *Builder, opts Options) (atoll.Provider, error) {
	d := b.Docker
	return docker.New(docker.Options{
		Dir:     filepath.Join(b.StateDir, "docker"),
		Guest:   sync.OnceValues(func() ([]byte, error) { return guestprogram.Load(d.Guest, b.StateDir) }),
		Plain:   d.Plain,
		Host:    d.Host,
		Prefix:  d.Prefix,
		Image:   d.Image,
		Runtime: d.Runtime,
		Log:     opts.Log,
	})
}
