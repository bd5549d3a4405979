package config

import (
	"fmt"
	"net/url"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Image says how images are fetched, by providers that do so themselves.
type Image struct {
	Insecure []string       `yaml:"insecure" doc:"registries that need no TLS: host or host:port; those on this machine never do"`
	Pull     string         `yaml:"pull" form:"missing always never" doc:"when a registry is asked for the image that a tag names"`
	Timeout  atoll.Duration `yaml:"timeout" doc:"how long one may take to be fetched and unpacked, like 10m; -1 for no limit"`
	Prune    atoll.Duration `yaml:"prune" doc:"serve removes images whose name a newer one has taken, and that nobody used for so long; 0 for never"`
	Limit    atoll.Bytes    `yaml:"limit" doc:"what one may unpack to, like 64g; -1 for no limit"`
}

func defaultImage() Image {
	return Image{Pull: "missing", Timeout: atoll.Duration(5 * time.Minute), Prune: atoll.Duration(24 * time.Hour), Limit: 32 << 30}
}

// check calls bad with the key of each value that makes no sense.
func (i Image) check(bad func(key string, err error)) {
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
