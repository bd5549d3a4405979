// Package keymutex has mutexes by name, within one process.
package keymutex

import (
	"context"
	"sync"
)

// Locks is a set of mutexes, one for each name. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed on unlock
}

// Try locks the mutex of a name if it is free, and reports whether it did.
func (l *Locks) Try(name string) (unlock func(), ok bool) {
	unlock, busy := l.tryTake(name)
	return unlock, busy == nil
}

// Lock locks the mutex of a name, and waits until it is free. If ctx ends first, Lock
// returns its error. A second call of unlock does nothing.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		unlock, busy := l.tryTake(name)
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

func (l *Locks) tryTake(name string) (unlock func(), busy <-chan struct{}) {
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
