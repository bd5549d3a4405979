package storetest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Benchmark measures the stores that open makes: those of one number are one store.
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
		if _, err := s.Insert(b.Context(), r, "raw", store.Room{}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := s.Find(b.Context(), r.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("life", func(b *testing.B) {
		n++
		s := open(n)
		defer s.Close()
		for b.Loop() {
			if err := life(b, s); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lives", func(b *testing.B) {
		n++
		s := open(n)
		defer s.Close()
		var failed atomic.Pointer[error]
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := life(b, s); err != nil {
					failed.Store(&err)
				}
			}
		})
		if err := failed.Load(); err != nil {
			b.Fatal(*err)
		}
	})
}

// life is that of a sandbox: four transactions.
func life(b *testing.B, s Store) error {
	r := &store.Record{ID: atoll.NewID(), Scope: "mock", State: store.Creating, Created: time.Now()}
	if _, err := s.Insert(b.Context(), r, "raw", store.Room{Most: 1000}); err != nil {
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
