package config

import (
	"strings"
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

func defaultDocker() Docker { return Docker{Prefix: "atoll", Image: "ubuntu:22.04"} }

// isUnix reports whether the address of an engine is a Unix socket of this machine.
func isUnix(host string) bool { return strings.HasPrefix(host, "unix:") }

// remoteHost returns the address of the Docker Engine if it is not a socket of this machine; otherwise "".
func (d *Docker) remoteHost() string {
	if isUnix(d.Host) {
		return ""
	}
	return d.Host
}
