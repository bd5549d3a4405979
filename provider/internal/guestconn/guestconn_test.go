package guestconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A fakeInside is an Inside that only records Close.
type fakeInside struct {
	sandbox
	closed atomic.Bool
}

type sandbox struct{ atoll.Sandbox }

func (r *fakeInside) Sandbox() atoll.Sandbox { return &r.sandbox }
func (r *fakeInside) Closed() bool           { return r.closed.Load() }
func (r *fakeInside) Close() error           { r.closed.Store(true); return nil }

// A fakeGuest counts the connections to it.
type fakeGuest struct {
	made atomic.Int32
	last atomic.Pointer[fakeInside]
}

func (h *fakeGuest) connect(context.Context) (Connection, error) {
	h.made.Add(1)
	r := &fakeInside{}
	h.last.Store(r)
	return r, nil
}

func TestReach(t *testing.T) {
	v := New()
	defer v.Close()
	var h fakeGuest
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if sb, err := v.Connect(t.Context(), "exec", "a", time.Minute, h.connect); err != nil || sb == nil {
				t.Errorf("Reach: %v, %v", sb, err)
			}
		})
	}
	all.Wait()
	if n := h.made.Load(); n != 1 {
		t.Errorf("concurrent callers made %d connections, want 1", n)
	}
	if _, err := v.Connect(t.Context(), "exec", "b", time.Minute, h.connect); err != nil || h.made.Load() != 2 {
		t.Errorf("another key: %v, %d connections, want 2", err, h.made.Load())
	}
	h.last.Load().closed.Store(true)
	if _, err := v.Connect(t.Context(), "exec", "b", time.Minute, h.connect); err != nil || h.made.Load() != 3 {
		t.Errorf("after the connection was closed: %v, %d connections, want 3", err, h.made.Load())
	}
	b := h.last.Load()
	if v.Open("b") != b {
		t.Error("the connection is not open")
	}
	b.closed.Store(true)
	if v.Open("b") != nil || v.Open("c") != nil {
		t.Error("Open returns a connection that is closed, or was never made")
	}
	v.Disconnect("b")
	v.Disconnect("b")
	if !b.Closed() || v.Latest("b") != nil || v.Open("b") != nil {
		t.Error("after Leave, the connection still exists")
	}
}

func TestReachFails(t *testing.T) {
	v := New()
	defer v.Close()
	broken := errors.New("broken")
	fail := func(context.Context) (Connection, error) { return nil, broken }
	if _, err := v.Connect(t.Context(), "exec", "a", 0, fail); !errors.Is(err, broken) {
		t.Errorf("Reach: %v, want %v", err, broken)
	}
	if in := v.Latest("a"); in != nil {
		t.Errorf("after a failure, Last = %v", in)
	}
	var h fakeGuest
	if _, err := v.Connect(t.Context(), "exec", "a", 0, h.connect); err != nil {
		t.Errorf("after a failure: %v", err)
	}
	wait := func(ctx context.Context) (Connection, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if _, err := v.Connect(t.Context(), "exec", "b", time.Millisecond, wait); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past the limit: %v", err)
	}
}

// A caller that gives up does not take the connection from others.
func TestReachWithoutItsFirst(t *testing.T) {
	v := New()
	defer v.Close()
	var h fakeGuest
	begun, goOn := make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context) (Connection, error) {
		close(begun)
		<-goOn
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return h.connect(ctx)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := v.Connect(ctx, "exec", "a", time.Minute, slow)
		first <- err
	}()
	<-begun
	giveUp()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that gave up got %v", err)
	}
	close(goOn)
	if _, err := v.Connect(t.Context(), "exec", "a", time.Minute, h.connect); err != nil || h.made.Load() != 1 {
		t.Errorf("the next caller: %v, %d connections, want 1", err, h.made.Load())
	}
}

func TestSettle(t *testing.T) {
	v := New()
	defer v.Close()
	var h fakeGuest
	if _, err := v.Connect(t.Context(), "exec", "a", 0, h.connect); err != nil {
		t.Fatal(err)
	}
	mine := &fakeInside{}
	v.Replace("a", mine)
	if !h.last.Load().Closed() || v.Latest("a") != Connection(mine) {
		t.Error("Settle did not replace the previous connection")
	}
	if sb, err := v.Connect(t.Context(), "exec", "a", 0, h.connect); err != nil || sb != mine.Sandbox() {
		t.Errorf("Reach: %v, %v", sb, err)
	}
	v.Close()
	late := &fakeInside{}
	if v.Replace("a", late); !late.Closed() {
		t.Error("Settle after Close did not close the connection")
	}
}

func TestClose(t *testing.T) {
	v := New()
	var h fakeGuest
	if _, err := v.Connect(t.Context(), "exec", "a", 0, h.connect); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	waiting := make(chan error)
	go func() {
		_, err := v.Connect(t.Context(), "exec", "b", time.Minute, func(ctx context.Context) (Connection, error) {
			close(begun)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		waiting <- err
	}()
	<-begun
	v.Close()
	v.Close()
	if err := <-waiting; !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("the waiting caller got %v, want ErrUnavailable", err)
	}
	if !h.last.Load().Closed() {
		t.Error("a connection is not closed")
	}
	if _, err := v.Connect(t.Context(), "exec", "a", 0, h.connect); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("after Close: %v, want ErrUnavailable", err)
	}
}

// Abandon cancels an attempt to connect that is in progress.
func TestAbandon(t *testing.T) {
	v := New()
	defer v.Close()
	begun, got := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := v.Connect(t.Context(), "exec", "a", 0, func(ctx context.Context) (Connection, error) {
			close(begun)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		got <- err
	}()
	<-begun
	v.Cancel("a")
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("the waiting caller got %v, want context.Canceled", err)
	}
	v.Cancel("nobody")
}
