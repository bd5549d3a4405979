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
	Host    string `yaml:"host" doc:"address of the Docker Engine; empty means DOCKER_HOST, or docker's current context"`
	Prefix  string `yaml:"prefix" doc:"prefix of the names of containers, volumes and networks in the engine: servers that share an engine need different prefixes"`
	Image   string `yaml:"image" doc:"image of sandboxes that name none"`
	Runtime string `yaml:"runtime" doc:"runtime of the engine, like runsc or kata; empty means its default"`
	Plain   bool   `yaml:"plain" doc:"do not use Atoll's program in containers, for engines in which it cannot run: sandboxes then have fewer features, see atoll doctor"`
	Guest   string `yaml:"guest" form:"path" doc:"path of Atoll's program for containers; empty means the one in this binary or beside it, or a build from source if that is present"`
}

func defaultDocker() Docker { return Docker{Prefix: "atoll", Image: docker.DefaultImage} }

// remoteHost returns the address of the Docker Engine if it is not a socket of this machine; otherwise "".
func (d *Docker) remoteHost() string {
	if isUnix(d.Host) {
		return ""
	}
	return d.Host
}

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
