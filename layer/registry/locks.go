package registry

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/keymutex"
)

// lockWait limits the wait of an operation for another one on the same sandbox, in
// addition to its context.
const lockWait = time.Minute

// sandboxLocks coordinate the operations of this program on each sandbox. Records
// in the store coordinate programs.
type sandboxLocks struct {
	records keymutex.Locks // by sandbox ID, held by operations on its record

	mu       sync.Mutex
	blocked  map[string]chan struct{} // by sandbox ID; closed when commands may start again
	starting map[string]int           // number of commands in their start, by sandbox ID
}

func newSandboxLocks() *sandboxLocks {
	return &sandboxLocks{blocked: map[string]chan struct{}{}, starting: map[string]int{}}
}

// tryLock locks the record of a sandbox if it is free.
func (s *sandboxLocks) tryLock(id string) (unlock func(), ok bool) { return s.records.Try(id) }

// lockRecord locks the record of a sandbox. It blocks for at most lockWait. Kinds:
// ErrConflict.
func (s *sandboxLocks) lockRecord(ctx context.Context, op, id string) (unlock func(), err error) {
	within, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	unlock, err = s.records.Lock(within, id)
	if err != nil && ctx.Err() == nil {
		err = atoll.Errorf(op, id, atoll.ErrConflict, "another operation on this sandbox is in progress")
	}
	return unlock, err
}

// beginCommand registers the start of a command. It blocks while the sandbox is
// being rebuilt; waited reports whether it did. The caller must call end.
func (s *sandboxLocks) beginCommand(ctx context.Context, id string) (end func(), waited bool, err error) {
	for {
		s.mu.Lock()
		barrier := s.blocked[id]
		if barrier == nil {
			s.starting[id]++
			s.mu.Unlock()
			return func() { s.endCommand(id) }, waited, nil
		}
		s.mu.Unlock()
		select {
		case <-barrier:
			waited = true
		case <-ctx.Done():
			return nil, true, ctx.Err()
		}
	}
}

// endCommand ends the start of a command.
func (s *sandboxLocks) endCommand(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting[id]--; s.starting[id] == 0 {
		delete(s.starting, id)
	}
}

// blockCommands blocks the start of commands until the caller calls unblock. Unless
// force is set, it returns false if a command is starting. The caller holds the
// sandbox's lock.
func (s *sandboxLocks) blockCommands(id string, force bool) (unblock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting[id] > 0 && !force {
		return nil, false
	}
	barrier := make(chan struct{})
	s.blocked[id] = barrier
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.blocked, id)
		close(barrier)
	}, true
}
