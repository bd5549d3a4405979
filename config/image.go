package config

import (
	"fmt"
	"net/url"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Image configures how images are pulled, for providers that pull them themselves.
type Image struct {
	Insecure []string       `yaml:"insecure" doc:"registries without TLS: host or host:port; registries on this machine never need TLS"`
	Pull     string         `yaml:"pull" form:"missing always never" doc:"when to ask a registry for the image of a tag"`
	Timeout  atoll.Duration `yaml:"timeout" doc:"time limit for pulling and unpacking an image, like 10m; -1 for no limit"`
	Prune    atoll.Duration `yaml:"prune" doc:"serve removes images that have been unused for so long, and whose tag names a newer image; 0 for never"`
	Limit    atoll.Bytes    `yaml:"limit" doc:"size limit of an unpacked image, like 64g; -1 for no limit"`
}

func defaultImage() Image {
	return Image{Pull: "missing", Timeout: atoll.Duration(5 * time.Minute), Prune: atoll.Duration(24 * time.Hour), Limit: 32 << 30}
}

// checkValues calls bad with the key of each invalid value.
func (i Image) checkValues(bad func(key string, err error)) {
	for _, host := range i.Insecure {
		if u, err := url.Parse("//" + host); err != nil || u.Host != host || u.Hostname() == "" {
			bad("image.insecure", fmt.Errorf("%q: write it like registry.example.com or 10.0.0.1:5000", host))
		}
	}
	if i.Timeout <= 0 && i.Timeout != atoll.Duration(-time.Second) {
		bad("image.timeout", fmt.Errorf("%s: must be positive, or -1 for no limit", i.Timeout))
	}
	if i.Prune < 0 {
		bad("image.prune", fmt.Errorf("%s: must be positive, or 0 for never", i.Prune))
	}
	if i.Limit <= 0 && i.Limit != atoll.Unlimited {
		bad("image.limit", fmt.Errorf("%s: must be positive, or -1 for no limit", i.Limit))
	}
}
