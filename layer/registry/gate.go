package registry

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
)

// lockWait is how long an operation waits for another one on the same sandbox,
// when its ctx allows more.
const lockWait = time.Minute

// A gate keeps those of this program out of each other's way. Other programs are
// kept out by what is written down.
type gate struct {
	held keymutex.Locks // by sandbox: who works on its record

	mu   sync.Mutex
	shut map[string]chan struct{} // by sandbox: closed when commands may start in it again
	uses map[string]int           // commands that are being started, by sandbox
}

func newGate() *gate {
	return &gate{shut: map[string]chan struct{}{}, uses: map[string]int{}}
}

// try takes the lock of a sandbox's record if it is free.
func (g *gate) try(id string) (unlock func(), ok bool) { return g.held.Try(id) }

// lock is try that waits. Kinds: ErrConflict.
func (g *gate) lock(ctx context.Context, op, id string) (unlock func(), err error) {
	within, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	unlock, err = g.held.Lock(within, id)
	if err != nil && ctx.Err() == nil {
		err = atoll.Errorf(op, id, atoll.ErrConflict, "another operation on this sandbox is in progress")
	}
	return unlock, err
}

// enter counts in a command that is going to be started, when the sandbox is
// not being rebuilt; waited says that it was.
func (g *gate) enter(ctx context.Context, id string) (leave func(), waited bool, err error) {
	for {
		g.mu.Lock()
		shut := g.shut[id]
		if shut == nil {
			g.uses[id]++
			g.mu.Unlock()
			return func() { g.leave(id) }, waited, nil
		}
		g.mu.Unlock()
		select {
		case <-shut:
			waited = true
		case <-ctx.Done():
			return nil, true, ctx.Err()
		}
	}
}

func (g *gate) leave(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.uses[id]--; g.uses[id] == 0 {
		delete(g.uses, id)
	}
}

// close lets no command start until open is called; it is not ok when one is
// being started, unless by force. The caller has the sandbox's lock.
func (g *gate) close(id string, force bool) (open func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.uses[id] > 0 && !force {
		return nil, false
	}
	shut := make(chan struct{})
	g.shut[id] = shut
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.shut, id)
		close(shut)
	}, true
}
