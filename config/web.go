package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/origin"
)

// Ports configures how browsers reach ports of sandboxes.
type Ports struct {
	Domain  string         `yaml:"domain" doc:"domain of which each port has a host of its own, PORT-ID.DOMAIN, for programs that do not work below a path; all names below it must lead to serve"`
	LinkTTL atoll.Duration `yaml:"link_ttl" doc:"lifetime of the links to ports that agents give their users, like 24h"`
}

func defaultPorts() Ports { return Ports{LinkTTL: atoll.Duration(24 * time.Hour)} }

const (
	minLinkTTL = atoll.Duration(time.Minute)
	maxLinkTTL = atoll.Duration(366 * 24 * time.Hour)
)

// domainPattern matches a domain that leaves room for a label with the port and the id of a sandbox.
var domainPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
})

// checkValues calls bad with the key of each invalid value.
func (p Ports) checkValues(bad func(key string, err error)) {
	_, ip := netip.ParseAddr(p.Domain)
	if p.Domain != "" && (ip == nil || len(p.Domain) > 200 || !domainPattern().MatchString(p.Domain)) {
		bad("ports.domain", fmt.Errorf("%q: write only the name of a domain in lower case, like ports.example.com", p.Domain))
	}
	if p.LinkTTL < minLinkTTL || p.LinkTTL > maxLinkTTL {
		bad("ports.link_ttl", fmt.Errorf("%s: must be within %s..%s", p.LinkTTL, minLinkTTL, maxLinkTTL))
	}
}

// checkWeb calls bad with the key of each invalid value that concerns browsers.
func (c *Config) checkWeb(bad func(key string, err error)) {
	for _, text := range c.PublicURL {
		bad("public_url", checkPublic(text))
	}
	for _, text := range c.Origins {
		_, err := origin.Parse(text)
		bad("origins", err)
	}
	c.Ports.checkValues(bad)
}

// checkPublic checks a public URL.
func checkPublic(text string) error {
	base, err := origin.Parse(trimSlash(text))
	if err == nil && !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") {
		return fmt.Errorf("%q: must begin with http:// or https://", text)
	}
	return err
}

func trimSlash(text string) string { return strings.TrimSuffix(text, "/") }

// PublicURLs returns the public URLs without slashes at their ends.
func (c *Config) PublicURLs() []string {
	all := make([]string, len(c.PublicURL))
	for i, text := range c.PublicURL {
		all[i] = trimSlash(text)
	}
	return all
}

// OriginPolicy returns the policy for web pages. Kinds: ErrInvalid.
func (c *Config) OriginPolicy() (*origin.Policy, error) {
	return origin.NewPolicy(c.PublicURLs(), c.Origins)
}
