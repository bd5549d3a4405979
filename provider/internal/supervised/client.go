package supervised

import (
	"context"
	"net"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A keeperClient speaks to the keeper of one sandbox, or to none if it has
// none. It outlives the keepers of a sandbox that is stopped and started.
type keeperClient struct {
	id, dir string
	info    atoll.Info

	once   sync.Once
	client *api.Client
	err    error
}

// keeper returns the client for a sandbox's keeper. It does not connect yet.
func (p *Provider) keeper(id string) *keeperClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.keepers[id]
	if k == nil {
		k = &keeperClient{id: id, dir: p.dir.Sandbox(id), info: p.opts.Info}
		p.keepers[id] = k
	}
	return k
}

// forget drops the client of a removed sandbox.
func (p *Provider) forget(id string) {
	p.mu.Lock()
	k := p.keepers[id]
	delete(p.keepers, id)
	p.mu.Unlock()
	if k != nil {
		k.close()
	}
}

// sandbox is the sandbox as the keeper serves it. Without a keeper its calls
// are ErrUnavailable.
func (k *keeperClient) sandbox() atoll.Sandbox {
	k.once.Do(func() {
		k.client, k.err = api.NewClient(context.Background(), api.ClientOptions{Dial: k.dial, Info: &k.info})
	})
	if k.err != nil {
		panic("kept: client for a known provider: " + k.err.Error()) // it does not connect, so it cannot fail
	}
	return k.client.Sandbox(k.id)
}

func (k *keeperClient) dial(ctx context.Context) (net.Conn, error) {
	return supervisor.Dial(ctx, k.dir)
}

func (k *keeperClient) close() {
	k.once.Do(func() {})
	if k.client != nil {
		_ = k.client.Close() // drops idle connections
	}
}
