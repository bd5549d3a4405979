package storetest

import (
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func checkSecretLifecycle(t *testing.T, open func(string) Store) {
	s := open("a")
	r := newRecord("scope", "web")
	_, err := s.Secret(t.Context(), r.ID)
	wantKind(t, "Secret of a missing record", err, atoll.ErrNotExist)
	if kept := insertRecord(t, s, r, "first"); kept != "first" {
		t.Errorf("Insert returned the secret %q", kept)
	}
	if kept, err := s.KeepSecret(t.Context(), "scope", r.ID, "second"); kept != "first" || err != nil {
		t.Errorf("KeepSecret returned %q, %v", kept, err)
	}
	if err := s.DropSecret(t.Context(), r.ID); err != nil {
		t.Errorf("DropSecret: %v", err)
	}
	wantSecret := func(when, want string) {
		t.Helper()
		if got, err := s.Secret(t.Context(), r.ID); got != want || err != nil {
			t.Errorf("%s: the secret is %q, %v; want %q", when, got, err, want)
		}
	}
	wantSecret("with a record", "first")
	if err := s.Delete(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	wantSecret("without a record", "first")
	if kept, err := s.KeepSecret(t.Context(), "other", atoll.NewID(), "x"); kept != "x" || err != nil {
		t.Errorf("KeepSecret returned %q, %v", kept, err)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); !slices.Equal(all, []string{r.ID}) || err != nil {
		t.Errorf("Abandoned: %q, %v; want %s", all, err, r.ID)
	}
	moved := newRecord("scope", "")
	insertRecord(t, s, moved, "secret")
	moved.Scope = "moved"
	if err := s.Update(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), moved, false); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Abandoned(t.Context(), "moved"); !slices.Equal(all, []string{moved.ID}) || err != nil {
		t.Errorf("Abandoned after a record moved to the scope: %q, %v; want %s", all, err, moved.ID)
	}
	if kept := insertRecord(t, s, r, "third"); kept != "first" {
		t.Errorf("Insert returned the secret %q", kept)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); len(all) != 0 || err != nil {
		t.Errorf("Abandoned: %q, %v; want none", all, err)
	}
	if err := s.Delete(t.Context(), r, true); err != nil {
		t.Fatal(err)
	}
	_, err = s.Secret(t.Context(), r.ID)
	wantKind(t, "Secret of a deleted record", err, atoll.ErrNotExist)
	if err := s.DropSecret(t.Context(), r.ID); err != nil {
		t.Errorf("DropSecret of a missing secret: %v", err)
	}
}
