package config

import (
	"fmt"
	"regexp"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// PublicImages is the value of projects.images that stands for the images that everybody may have.
const PublicImages = "public"

// Projects limits what accounts and keys with the role project may ask for.
type Projects struct {
	Images    []string    `yaml:"images" doc:"images that accounts of projects may use besides the ones in this configuration: public for those that well-known registries give to everybody; or a registry or repository, like registry.example.com or ghcr.io/acme, whose images are pulled with this machine's credentials"`
	Memory    atoll.Bytes `yaml:"memory" doc:"greatest memory limit of a sandbox of such an account, like 8g; 0 for half of this machine's memory, or any limit in Kubernetes and at Modal; -1 for no limit"`
	CPUs      float64     `yaml:"cpus" doc:"greatest CPU limit of such a sandbox; 0 for the CPUs of this machine, or any limit in Kubernetes and at Modal; -1 for no limit"`
	Processes int         `yaml:"processes" doc:"greatest process limit of such a sandbox; -1 for no limit"`
	Disk      atoll.Bytes `yaml:"disk" doc:"greatest limit of files that such a sandbox writes outside of volumes; -1 for no limit"`
}

func defaultProjects() Projects {
	return Projects{Images: []string{PublicImages}, Processes: 8192, Disk: 64 << 30}
}

// repositoryPattern matches a registry, a repository, or the beginning of its path.
var repositoryPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$`)
})

// checkValues calls bad with the key of each invalid value.
func (p Projects) checkValues(bad func(key string, err error)) {
	for _, image := range p.Images {
		if image != PublicImages && !repositoryPattern().MatchString(image) {
			bad("projects.images", fmt.Errorf("%q: write it like public, registry.example.com or ghcr.io/acme/app, without a tag", image))
		}
	}
	for key, n := range map[string]float64{"memory": float64(p.Memory), "cpus": p.CPUs, "processes": float64(p.Processes), "disk": float64(p.Disk)} {
		if n < 0 && n != atoll.Unlimited {
			bad("projects."+key, fmt.Errorf("%v: must be positive, or -1 for no limit", n))
		}
	}
}
