package supervised

import (
	"context"
	"sync"
	"time"
)

// A startQueue lets few sandboxes start at a time, in the order of their requests: a hundred at once are then ready one after
// the other, and not all at the end. A start that takes long lets the next one begin.
type startQueue struct {
	slots chan struct{} // nil for no limit
	most  time.Duration // for which a start counts
}

// newStartQueue returns a queue of n starts at a time; 0 means any number.
func newStartQueue(n int, most time.Duration) *startQueue {
	q := &startQueue{most: most}
	if n > 0 {
		q.slots = make(chan struct{}, n)
	}
	return q
}

// joinQueue waits for the caller's turn. The caller must call leave at the end of its start.
func (q *startQueue) joinQueue(ctx context.Context) (leave func(), err error) {
	if q.slots == nil {
		return func() {}, nil
	}
	select {
	case q.slots <- struct{}{}: // waiting senders have their turn in the order in which they came
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	free := sync.OnceFunc(func() { <-q.slots })
	slow := time.AfterFunc(q.most, free)
	return func() {
		slow.Stop()
		free()
	}, nil
}
