// Package guestconn shares connections to the guests of sandboxes between concurrent calls.
package guestconn

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// An Inside is a running sandbox as who is inside serves it.
type Inside interface {
	Sandbox() atoll.Sandbox
	// Closed reports whether it is of no use any more.
	Closed() bool
	// Close ends the connection.
	Close() error
}

// Visits are the connections of a provider. Its methods may be called at the same time.
type Visits struct {
	ctx  context.Context // ends when they are closed
	quit context.CancelFunc

	mu   sync.Mutex
	made map[string]*visit // by whom they are to
}

// A visit is a connection to an inside, or the attempt to make one.
type visit struct {
	done   chan struct{} // closed when inside or err is set
	cancel context.CancelFunc
	inside Inside
	err    error
}

// New returns none yet.
func New() *Visits {
	v := &Visits{made: map[string]*visit{}}
	v.ctx, v.quit = context.WithCancel(context.Background())
	return v
}

// Reach returns the sandbox to whose inside connect connects. One connection
// serves all who ask for the same who; when it is closed, or has failed, the next to
// ask makes a new one. The context of connect ends after limit, or when v is closed,
// but not with the first caller's, who may give up; a limit of 0 is none. Errors are
// those of connect, and ErrUnavailable once v is closed.
func (v *Visits) Reach(ctx context.Context, op, who string, limit time.Duration, connect func(context.Context) (Inside, error)) (atoll.Sandbox, error) {
	var attempt context.Context
	v.mu.Lock()
	to := v.made[who]
	fresh := to == nil || to.over()
	if fresh {
		if v.ctx.Err() != nil {
			v.mu.Unlock()
			return nil, errClosed(op, who)
		}
		to = &visit{done: make(chan struct{})}
		attempt, to.cancel = context.WithCancel(v.ctx)
		v.made[who] = to
	}
	v.mu.Unlock()
	if fresh {
		go to.connect(attempt, limit, connect)
	}
	select {
	case <-to.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if to.err != nil && v.ctx.Err() != nil {
		return nil, errClosed(op, who)
	}
	if to.err != nil {
		return nil, to.err
	}
	return to.inside.Sandbox(), nil
}

func errClosed(op, who string) error {
	return atoll.Errorf(op, who, atoll.ErrUnavailable, "the provider is closed")
}

// Settle makes in, which v owns from then on, the inside of who for all calls to
// come. One that there was before is closed.
func (v *Visits) Settle(who string, in Inside) {
	to := &visit{done: make(chan struct{}), inside: in}
	close(to.done)
	v.mu.Lock()
	before := v.made[who]
	closed := v.ctx.Err() != nil
	if !closed {
		v.made[who] = to
	}
	v.mu.Unlock()
	if before != nil {
		before.close()
	}
	if closed {
		to.close()
	}
}

// Last is the inside of who that was connected to last, whether it is closed or not;
// nil if there is none. It waits for the attempt to connect that is being made.
func (v *Visits) Last(who string) Inside {
	v.mu.Lock()
	to := v.made[who]
	v.mu.Unlock()
	if to == nil {
		return nil
	}
	<-to.done
	return to.inside
}

// Open is the inside of who that there is a connection to; nil if there is none, or one is
// only being made. It does not wait.
func (v *Visits) Open(who string) Inside {
	v.mu.Lock()
	to := v.made[who]
	v.mu.Unlock()
	if to == nil {
		return nil
	}
	select {
	case <-to.done:
	default:
		return nil
	}
	if to.inside == nil || to.inside.Closed() {
		return nil
	}
	return to.inside
}

// Abandon is Leave that gives up the attempt to connect that is being made: whoever waits
// for it gets the error of an ended context.
func (v *Visits) Abandon(who string) {
	v.mu.Lock()
	to := v.made[who]
	v.mu.Unlock()
	if to != nil && to.cancel != nil {
		to.cancel()
	}
	v.Leave(who)
}

// Leave ends the connection to who, if there is one. An attempt to make one comes to
// its end first.
func (v *Visits) Leave(who string) {
	v.mu.Lock()
	to := v.made[who]
	delete(v.made, who)
	v.mu.Unlock()
	if to != nil {
		to.close()
	}
}

// Close ends all connections, and the attempts to make some. No more are made.
func (v *Visits) Close() {
	v.mu.Lock()
	v.quit()
	all := v.made
	v.made = map[string]*visit{}
	v.mu.Unlock()
	for _, to := range all {
		to.close()
	}
}

// connect makes the connection.
func (to *visit) connect(ctx context.Context, limit time.Duration, connect func(context.Context) (Inside, error)) {
	defer close(to.done)
	defer to.cancel()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	to.inside, to.err = connect(ctx)
}

func (to *visit) close() {
	<-to.done
	if to.inside != nil {
		_ = to.inside.Close()
	}
}

// over reports whether the visit is of no use any more.
func (to *visit) over() bool {
	select {
	case <-to.done:
		return to.err != nil || to.inside.Closed()
	default:
		return false
	}
}
