package storetest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Benchmark measures a store. Each call of open with the same number opens the same store.
func Benchmark(b *testing.B, open func(n int) Store) {
	n := 0
	identify := func(b *testing.B) {
		s := open(n)
		if _, err := s.Identity(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("make", func(b *testing.B) {
		for b.Loop() {
			n++
			identify(b)
		}
	})
	b.Run("open", func(b *testing.B) {
		n++
		identify(b)
		for b.Loop() {
			identify(b)
		}
	})
	b.Run("find", func(b *testing.B) {
		n++
		s := open(n)
		defer s.Close()
		r := &store.Record{ID: atoll.NewID(), Scope: "mock", State: store.Present, Created: time.Now()}
		if _, err := s.Insert(b.Context(), r, "raw", store.Limits{}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := s.Find(b.Context(), r.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lifecycle", func(b *testing.B) {
		n++
		s := open(n)
		defer s.Close()
		for b.Loop() {
			if err := runLifecycle(b, s); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lifecycles", func(b *testing.B) {
		n++
		s := open(n)
		defer s.Close()
		var failed atomic.Pointer[error]
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := runLifecycle(b, s); err != nil {
					failed.Store(&err)
				}
			}
		})
		if err := failed.Load(); err != nil {
			b.Fatal(*err)
		}
	})
}

// runLifecycle runs the transactions of a sandbox's life, of which there are four.
func runLifecycle(b *testing.B, s Store) error {
	r := &store.Record{ID: atoll.NewID(), Scope: "mock", State: store.Creating, Created: time.Now()}
	if _, err := s.Insert(b.Context(), r, "raw", store.Limits{Most: 1000}); err != nil {
		return err
	}
	for _, state := range []store.State{store.Present, store.Removing} {
		r.State = state
		if err := s.Update(b.Context(), r); err != nil {
			return err
		}
	}
	return s.Delete(b.Context(), r, true)
}
