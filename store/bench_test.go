package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "atoll.db")
	first := NewSQLite(path)
	if _, err := first.Identity(b.Context()); err != nil {
		b.Fatal(err)
	}
	first.Close()
	for b.Loop() {
		s := NewSQLite(path)
		if _, err := s.Identity(b.Context()); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

func BenchmarkMake(b *testing.B) {
	for b.Loop() {
		s := NewSQLite(filepath.Join(b.TempDir(), "atoll.db"))
		if _, err := s.Identity(b.Context()); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// A sandbox's life is four transactions.
func BenchmarkLife(b *testing.B) {
	s := NewSQLite(filepath.Join(b.TempDir(), "atoll.db"))
	defer s.Close()
	for b.Loop() {
		r := &Record{ID: atoll.NewID(), Scope: "mock", State: Creating, Created: time.Now()}
		if _, err := s.Insert(b.Context(), r, "raw", 0); err != nil {
			b.Fatal(err)
		}
		for _, state := range []State{Present, Removing} {
			r.State = state
			if err := s.Update(b.Context(), r); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Delete(b.Context(), r, true); err != nil {
			b.Fatal(err)
		}
	}
}
