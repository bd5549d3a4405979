package storetest

import (
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func secrets(t *testing.T, open func(string) Store) {
	s := open("a")
	r := record("scope", "web")
	_, err := s.Secret(t.Context(), r.ID)
	wantKind(t, "Secret of none", err, atoll.ErrNotExist)
	if kept := insert(t, s, r, "first"); kept != "first" {
		t.Errorf("Insert keeps %q", kept)
	}
	if kept, err := s.KeepSecret(t.Context(), "scope", r.ID, "second"); kept != "first" || err != nil {
		t.Errorf("KeepSecret keeps %q, %v", kept, err)
	}
	if err := s.DropSecret(t.Context(), r.ID); err != nil {
		t.Errorf("DropSecret: %v", err)
	}
	holds := func(when, want string) {
		t.Helper()
		if got, err := s.Secret(t.Context(), r.ID); got != want || err != nil {
			t.Errorf("%s: the secret is %q, %v; want %q", when, got, err, want)
		}
	}
	holds("with a record", "first")
	if err := s.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	holds("without a record", "first")
	if kept, err := s.KeepSecret(t.Context(), "other", atoll.NewID(), "x"); kept != "x" || err != nil {
		t.Errorf("KeepSecret keeps %q, %v", kept, err)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); !slices.Equal(all, []string{r.ID}) || err != nil {
		t.Errorf("Abandoned: %q, %v; want %s", all, err, r.ID)
	}
	moved := record("scope", "")
	insert(t, s, moved, "secret")
	moved.Scope = "moved"
	if err := s.Update(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), moved, false); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Abandoned(t.Context(), "moved"); !slices.Equal(all, []string{moved.ID}) || err != nil {
		t.Errorf("Abandoned, where a record has come from another scope: %q, %v; want %s", all, err, moved.ID)
	}
	if kept := insert(t, s, r, "third"); kept != "first" {
		t.Errorf("Insert keeps %q", kept)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); len(all) != 0 || err != nil {
		t.Errorf("Abandoned: %q, %v; want none", all, err)
	}
	if err := s.Delete(t.Context(), r, true); err != nil {
		t.Fatal(err)
	}
	_, err = s.Secret(t.Context(), r.ID)
	wantKind(t, "Secret of what was deleted with it", err, atoll.ErrNotExist)
	if err := s.DropSecret(t.Context(), r.ID); err != nil {
		t.Errorf("DropSecret of none: %v", err)
	}
}
