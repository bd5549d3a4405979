package supervised

import (
	"context"
	"net"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A supervisorClient speaks to the supervisor of one sandbox. It outlives the supervisors
// of a sandbox that is stopped and started again.
type supervisorClient struct {
	id, dir string
	info    atoll.Info

	once   sync.Once
	client *client.Client
	err    error
}

// clientFor returns the client for a sandbox's supervisor. It does not connect yet.
func (p *Provider) clientFor(id string) *supervisorClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.clients[id]
	if c == nil {
		c = &supervisorClient{id: id, dir: p.dir.Sandbox(id), info: p.opts.Info}
		p.clients[id] = c
	}
	return c
}

// dropClient closes and forgets the client of a removed sandbox.
func (p *Provider) dropClient(id string) {
	p.mu.Lock()
	c := p.clients[id]
	delete(p.clients, id)
	p.mu.Unlock()
	if c != nil {
		c.close()
	}
}

// remoteSandbox returns the sandbox as the supervisor serves it. Without a supervisor its
// calls return ErrUnavailable.
func (c *supervisorClient) remoteSandbox() atoll.Sandbox {
	c.once.Do(func() {
		c.client, c.err = client.New(context.Background(), client.Options{Dial: c.dialSupervisor, Info: &c.info})
	})
	if c.err != nil {
		panic("supervised: client for a known provider: " + c.err.Error()) // it does not connect, so it cannot fail
	}
	return c.client.Sandbox(c.id)
}

func (c *supervisorClient) dialSupervisor(ctx context.Context) (net.Conn, error) {
	return supervisor.Dial(ctx, c.dir)
}

func (c *supervisorClient) close() {
	c.once.Do(func() {})
	if c.client != nil {
		_ = c.client.Close() // drops idle connections
	}
}
