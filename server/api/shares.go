package api

import (
	"context"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Shares of an account of projects in what all clients of a server have together: connections, goroutines and
// terminals of this process, and the file watches that the kernel gives a user.
const (
	maxAccountStreams = 512 // long responses and WebSockets at a time
	maxAccountWatches = 32  // of these, file watches
)

// shares count what accounts use. The zero value is ready to use.
type shares struct {
	mu   sync.Mutex
	used map[share]int
}

type share struct{ account, what string }

// reserveShare reserves one of most for the account in ctx, if it is restricted to projects. The caller calls release.
// Kinds: ErrExhausted.
func (s *shares) reserveShare(ctx context.Context, what string, most int) (release func(), err error) {
	account := auth.AccountFrom(ctx)
	if !account.IsRestricted() {
		return func() {}, nil
	}
	key := share{account.Identity(), what}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[key] >= most {
		return nil, atoll.Errorf("", "", atoll.ErrExhausted, "account %s has %d %s in progress, the most for an account of projects; end some", account.Name, most, what)
	}
	if s.used == nil {
		s.used = map[share]int{}
	}
	s.used[key]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.used[key]--; s.used[key] == 0 {
			delete(s.used, key)
		}
	}), nil
}
