package config

import (
	"path/filepath"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// Docker are the settings of the provider docker.
type Docker struct {
	Host    string `yaml:"host" doc:"address of the Docker Engine; DOCKER_HOST, or docker's current context, when empty"`
	Prefix  string `yaml:"prefix" doc:"begins the names of what is made in the engine: servers that share one have different ones"`
	Image   string `yaml:"image" doc:"image of sandboxes that name none"`
	Runtime string `yaml:"runtime" doc:"the engine's runtime to use, like runsc or kata; its default when empty"`
	Plain   bool   `yaml:"plain" doc:"do without Atoll's program in containers, where it cannot run: sandboxes can do less then, see atoll doctor"`
	Guest   string `yaml:"guest" form:"path" doc:"Atoll's program for containers; when empty the one in this binary or beside it, or built from source where that is"`
}

func defaultDocker() Docker { return Docker{Prefix: "atoll", Image: docker.DefaultImage} }

func openDocker(cfg *Config, opts Options) (atoll.Provider, error) {
	d := cfg.Docker
	return docker.New(docker.Options{
		Dir:     filepath.Join(cfg.StateDir, "docker"),
		Guest:   sync.OnceValues(func() ([]byte, error) { return guestprogram.Load(d.Guest, cfg.StateDir) }),
		Plain:   d.Plain,
		Host:    d.Host,
		Prefix:  d.Prefix,
		Image:   d.Image,
		Runtime: d.Runtime,
		Log:     opts.Log,
	})
}
