//go:build unix

package volume

import (
	"os"
	"syscall"
	"testing"
)

// Whoever makes a volume, with whatever umask, all users inside can get into it:
// also when the one before him was killed half way.
func TestUmask(t *testing.T) {
	s := open(t)
	defer syscall.Umask(syscall.Umask(0o077))
	if err := os.MkdirAll(s.Path("a", unborn), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cache", "other"} {
		if err := s.Make("a", name); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(s.Path("a", name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o755 {
			t.Errorf("%s has mode %o, want 755", name, got)
		}
	}
	if list, err := s.List("a"); len(list) != 2 || err != nil {
		t.Errorf("List: %+v, %v; want 2", list, err)
	}
	if _, err := os.Lstat(s.Path("a", unborn)); err == nil {
		t.Error("what was being made is left")
	}
	if err := os.Mkdir(s.Path("a", unborn), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Path("a", "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Make("a", "cache"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(s.Path("a", "cache")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a volume that was there: %v, %v; want its mode kept", info.Mode(), err)
	}
	for _, name := range []string{"cache", "other"} {
		if err := s.Remove("a", name, nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(s.Path("a", "")); err == nil {
		t.Error("the directory of a project without volumes is left")
	}
}
