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

// A room is an Inside that is only closed.
type room struct {
	sandbox
	closed atomic.Bool
}

type sandbox struct{ atoll.Sandbox }

func (r *room) Sandbox() atoll.Sandbox { return &r.sandbox }
func (r *room) Closed() bool           { return r.closed.Load() }
func (r *room) Close() error           { r.closed.Store(true); return nil }

// A house counts the connections to it.
type house struct {
	made atomic.Int32
	last atomic.Pointer[room]
}

func (h *house) connect(context.Context) (Inside, error) {
	h.made.Add(1)
	r := &room{}
	h.last.Store(r)
	return r, nil
}

func TestReach(t *testing.T) {
	v := New()
	defer v.Close()
	var h house
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if sb, err := v.Reach(t.Context(), "exec", "a", time.Minute, h.connect); err != nil || sb == nil {
				t.Errorf("Reach: %v, %v", sb, err)
			}
		})
	}
	all.Wait()
	if n := h.made.Load(); n != 1 {
		t.Errorf("for callers at once there are %d connections, want 1", n)
	}
	if _, err := v.Reach(t.Context(), "exec", "b", time.Minute, h.connect); err != nil || h.made.Load() != 2 {
		t.Errorf("another: %v, %d connections, want 2", err, h.made.Load())
	}
	h.last.Load().closed.Store(true)
	if _, err := v.Reach(t.Context(), "exec", "b", time.Minute, h.connect); err != nil || h.made.Load() != 3 {
		t.Errorf("one that was closed: %v, %d connections, want 3", err, h.made.Load())
	}
	b := h.last.Load()
	if v.Open("b") != b {
		t.Error("the connection is not open")
	}
	b.closed.Store(true)
	if v.Open("b") != nil || v.Open("c") != nil {
		t.Error("one that is closed, or was never made, is open")
	}
	v.Leave("b")
	v.Leave("b")
	if !b.Closed() || v.Last("b") != nil || v.Open("b") != nil {
		t.Error("after Leave the connection is still there")
	}
}

func TestReachFails(t *testing.T) {
	v := New()
	defer v.Close()
	broken := errors.New("broken")
	fail := func(context.Context) (Inside, error) { return nil, broken }
	if _, err := v.Reach(t.Context(), "exec", "a", 0, fail); !errors.Is(err, broken) {
		t.Errorf("Reach: %v, want %v", err, broken)
	}
	if in := v.Last("a"); in != nil {
		t.Errorf("after a failure Last is %v", in)
	}
	var h house
	if _, err := v.Reach(t.Context(), "exec", "a", 0, h.connect); err != nil {
		t.Errorf("after a failure: %v", err)
	}
	wait := func(ctx context.Context) (Inside, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if _, err := v.Reach(t.Context(), "exec", "b", time.Millisecond, wait); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past the limit: %v", err)
	}
}

// Who gives up does not take the connection from others.
func TestReachWithoutItsFirst(t *testing.T) {
	v := New()
	defer v.Close()
	var h house
	begun, goOn := make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context) (Inside, error) {
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
		_, err := v.Reach(ctx, "exec", "a", time.Minute, slow)
		first <- err
	}()
	<-begun
	giveUp()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up: %v", err)
	}
	close(goOn)
	if _, err := v.Reach(t.Context(), "exec", "a", time.Minute, h.connect); err != nil || h.made.Load() != 1 {
		t.Errorf("the next: %v, %d connections, want 1", err, h.made.Load())
	}
}

func TestSettle(t *testing.T) {
	v := New()
	defer v.Close()
	var h house
	if _, err := v.Reach(t.Context(), "exec", "a", 0, h.connect); err != nil {
		t.Fatal(err)
	}
	mine := &room{}
	v.Settle("a", mine)
	if !h.last.Load().Closed() || v.Last("a") != Inside(mine) {
		t.Error("the one before is still there")
	}
	if sb, err := v.Reach(t.Context(), "exec", "a", 0, h.connect); err != nil || sb != mine.Sandbox() {
		t.Errorf("Reach: %v, %v", sb, err)
	}
	v.Close()
	late := &room{}
	if v.Settle("a", late); !late.Closed() {
		t.Error("settled after Close, it is not closed")
	}
}

func TestClose(t *testing.T) {
	v := New()
	var h house
	if _, err := v.Reach(t.Context(), "exec", "a", 0, h.connect); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	waiting := make(chan error)
	go func() {
		_, err := v.Reach(t.Context(), "exec", "b", time.Minute, func(ctx context.Context) (Inside, error) {
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
		t.Errorf("who waited: %v, want unavailable", err)
	}
	if !h.last.Load().Closed() {
		t.Error("a connection is not closed")
	}
	if _, err := v.Reach(t.Context(), "exec", "a", 0, h.connect); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("after Close: %v, want unavailable", err)
	}
}

// An attempt that takes too long is given up.
func TestAbandon(t *testing.T) {
	v := New()
	defer v.Close()
	begun, got := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := v.Reach(t.Context(), "exec", "a", 0, func(ctx context.Context) (Inside, error) {
			close(begun)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		got <- err
	}()
	<-begun
	v.Abandon("a")
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("who waited got %v", err)
	}
	v.Abandon("nobody")
}
