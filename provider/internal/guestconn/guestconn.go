// Package guestconn shares connections to the guests of sandboxes between concurrent calls.
package guestconn

import (
	"context"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// An Inside is a connection to the guest of a running sandbox.
type Connection interface {
	// Sandbox returns the sandbox as its guest serves it.
	Sandbox() atoll.Sandbox
	// Closed reports whether the connection can no longer be used.
	Closed() bool
	// Close ends the connection.
	Close() error
}

// Connections holds the connections of a provider, one per key. Its methods may be called concurrently.
type Connections struct {
	ctx  context.Context // ends with Close
	quit context.CancelFunc

	mu          sync.Mutex
	connections map[string]*connection // by key
}

// A connection is a connection to a guest, or the attempt to make one.
type connection struct {
	done   chan struct{} // closed when inside or err is set
	cancel context.CancelFunc
	inside Connection
	err    error
}

// New returns Connections without any.
func New() *Connections {
	v := &Connections{connections: map[string]*connection{}}
	v.ctx, v.quit = context.WithCancel(context.Background())
	return v
}

// Connect returns the sandbox of the connection for key. If there is none, or it is closed or has
// failed, Reach calls connect to make one, which all concurrent callers share. The context of connect
// does not end with that of a caller. It ends after limit, if that is not 0, and when Abandon or Close
// is called. Reach blocks until the connection is made or ctx ends. Errors: those of connect and ctx,
// and ErrUnavailable after Close.
func (v *Connections) Connect(ctx context.Context, op, key string, limit time.Duration, connect func(context.Context) (Connection, error)) (atoll.Sandbox, error) {
	var attempt context.Context
	v.mu.Lock()
	conn := v.connections[key]
	fresh := conn == nil || conn.isStale()
	if fresh {
		if v.ctx.Err() != nil {
			v.mu.Unlock()
			return nil, errClosed(op, key)
		}
		conn = &connection{done: make(chan struct{})}
		attempt, conn.cancel = context.WithCancel(v.ctx)
		v.connections[key] = conn
	}
	v.mu.Unlock()
	if fresh {
		go conn.connectGuest(attempt, limit, connect)
	}
	select {
	case <-conn.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if conn.err != nil && v.ctx.Err() != nil {
		return nil, errClosed(op, key)
	}
	if conn.err != nil {
		return nil, conn.err
	}
	return conn.inside.Sandbox(), nil
}

func errClosed(op, key string) error {
	return atoll.Errorf(op, key, atoll.ErrUnavailable, "the provider is closed")
}

// Replace sets the connection for key to in, which v owns from then on, and closes the previous
// connection. After Close, Settle closes in.
func (v *Connections) Replace(key string, in Connection) {
	conn := &connection{done: make(chan struct{}), inside: in}
	close(conn.done)
	v.mu.Lock()
	before := v.connections[key]
	closed := v.ctx.Err() != nil
	if !closed {
		v.connections[key] = conn
	}
	v.mu.Unlock()
	if before != nil {
		before.closeWhenDone()
	}
	if closed {
		conn.closeWhenDone()
	}
}

// Latest returns the latest connection for key, which may be closed, or nil. It waits for an attempt to
// connect that is in progress.
func (v *Connections) Latest(key string) Connection {
	v.mu.Lock()
	conn := v.connections[key]
	v.mu.Unlock()
	if conn == nil {
		return nil
	}
	<-conn.done
	return conn.inside
}

// Open returns the open connection for key, or nil. It does not wait for an attempt to connect.
func (v *Connections) Open(key string) Connection {
	v.mu.Lock()
	conn := v.connections[key]
	v.mu.Unlock()
	if conn == nil {
		return nil
	}
	select {
	case <-conn.done:
	default:
		return nil
	}
	if conn.inside == nil || conn.inside.Closed() {
		return nil
	}
	return conn.inside
}

// Cancel is Leave, but cancels an attempt to connect that is in progress: Reach returns its error,
// context.Canceled.
func (v *Connections) Cancel(key string) {
	v.mu.Lock()
	conn := v.connections[key]
	v.mu.Unlock()
	if conn != nil && conn.cancel != nil {
		conn.cancel()
	}
	v.Disconnect(key)
}

// Disconnect closes the connection for key, if there is one. It waits for an attempt to connect that is in
// progress.
func (v *Connections) Disconnect(key string) {
	v.mu.Lock()
	conn := v.connections[key]
	delete(v.connections, key)
	v.mu.Unlock()
	if conn != nil {
		conn.closeWhenDone()
	}
}

// Close cancels attempts to connect, and closes all connections. Later calls of Reach fail.
func (v *Connections) Close() {
	v.mu.Lock()
	v.quit()
	all := v.connections
	v.connections = map[string]*connection{}
	v.mu.Unlock()
	for _, conn := range all {
		conn.closeWhenDone()
	}
}

// connectGuest makes the connection and sets inside or err.
func (conn *connection) connectGuest(ctx context.Context, limit time.Duration, connect func(context.Context) (Connection, error)) {
	defer close(conn.done)
	defer conn.cancel()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	conn.inside, conn.err = connect(ctx)
}

// closeWhenDone waits for the attempt to connect and closes its result.
func (conn *connection) closeWhenDone() {
	<-conn.done
	if conn.inside != nil {
		_ = conn.inside.Close()
	}
}

// isStale reports whether the connection has failed or is closed.
func (conn *connection) isStale() bool {
	select {
	case <-conn.done:
		return conn.err != nil || conn.inside.Closed()
	default:
		return false
	}
}
