package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll/server/api"
)

// LinkOptions returns the options of links to ports, without KeyAccount. The store has the secret, so that all servers of
// a store accept each other's links.
func (b *Builder) LinkOptions() api.LinkOptions {
	o := api.LinkOptions{TTL: time.Duration(b.Ports.LinkTTL), Domain: b.Ports.Domain, Secret: b.linkSecret}
	if all := b.PublicURLs(); len(all) > 0 {
		o.PublicURL = all[0]
	}
	return o
}

// linkSecret returns the secret of links in the store. The first call creates it.
func (b *Builder) linkSecret(ctx context.Context) (string, error) {
	s := openStore(b)
	secret, err := s.KeepSecret(ctx, "server", "port-links", rand.Text()+rand.Text())
	return secret, errors.Join(err, s.Close())
}
