//go:build unix

package volume

import (
	"os"
	"syscall"
	"testing"
)

// All users inside can read a volume, whatever the umask of its creator, and even if an earlier
// creator was killed.
func TestUmask(t *testing.T) {
	s := openStore(t)
	defer syscall.Umask(syscall.Umask(0o077))
	if err := os.MkdirAll(s.Path("a", unfinishedName), 0o700); err != nil {
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
	if _, err := os.Lstat(s.Path("a", unfinishedName)); err == nil {
		t.Error("the unfinished volume is left")
	}
	if err := os.Mkdir(s.Path("a", unfinishedName), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Path("a", "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Make("a", "cache"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(s.Path("a", "cache")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("an existing volume: %v, %v; want its mode unchanged", info.Mode(), err)
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
