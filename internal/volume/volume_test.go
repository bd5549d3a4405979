package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func TestStore(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	id := atoll.NewID()
	for _, v := range [][2]string{{"b", "cache"}, {"a", "cache"}, {"a", DataName(id)}, {"a", "cache"}, {"a", "data-x"}} {
		if err := s.Make(v[0], v[1]); err != nil || !s.Has(v[0], v[1]) {
			t.Errorf("Make(%s, %s): %v", v[0], v[1], err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.Path("a", "cache"), "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	sealed := filepath.Join(s.Path("a", "cache"), "sealed")
	if err := os.MkdirAll(filepath.Join(sealed, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sealed, 0); err != nil {
		t.Fatal(err)
	}
	all, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	var names string
	for _, v := range all {
		names += v.Project + "/" + v.Name + " "
		if (v.Sandbox == id) != (v.Name == DataName(id)) || time.Since(v.Created).Abs() > time.Minute {
			t.Errorf("volume %+v", v)
		}
	}
	if want := "a/cache a/" + DataName(id) + " a/data-x b/cache "; names != want {
		t.Errorf("List: %s, want %s", names, want)
	}
	if of, err := s.List("b"); err != nil || len(of) != 1 {
		t.Errorf("List(b): %+v, %v", of, err)
	}
	if err := s.Remove("a", "cache"); err != nil {
		t.Error(err)
	}
	for _, v := range [][2]string{{"a", "cache"}, {"a", "../b"}, {"..", "volumes"}, {"none", "x"}, {"", ""}} {
		if err := s.Remove(v[0], v[1]); !errors.Is(err, atoll.ErrNotExist) {
			t.Errorf("Remove(%q, %q): %v, want ErrNotExist", v[0], v[1], err)
		}
	}
	if err := s.Make("a", "../x"); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Make: %v, want ErrInvalid", err)
	}
	if err := s.Remove("b", "cache"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "b")); err == nil {
		t.Error("the directory of a project without volumes is left")
	}
}
