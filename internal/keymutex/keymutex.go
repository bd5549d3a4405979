// Package keymutex has mutexes by name, for one program.
package keymutex

import (
	"context"
	"sync"
)

// Locks are as many locks as there are names. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is free
}

// Try takes the lock of a name if it is free.
func (l *Locks) Try(name string) (unlock func(), ok bool) {
	unlock, busy := l.take(name)
	return unlock, busy == nil
}

// Lock takes the lock of a name when it is free. When ctx ends first, it returns
// its error.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		unlock, busy := l.take(name)
		if busy == nil {
			return unlock, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *Locks) take(name string) (unlock func(), busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy := l.held[name]; busy != nil {
		return nil, busy
	}
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	free := make(chan struct{})
	l.held[name] = free
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, name)
		close(free)
	}), nil
}
