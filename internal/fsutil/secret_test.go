package fsutil

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestLoadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	var all sync.WaitGroup
	var makers [16]bool
	var got [16][]byte
	for i := range got {
		all.Go(func() {
			var err error
			got[i], makers[i], err = LoadSecret("test", path, 100, func() ([]byte, error) { return []byte{byte(i), 'x'}, nil })
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	made := 0
	for i := range got {
		if !bytes.Equal(got[i], got[0]) {
			t.Errorf("one got %q, another %q", got[i], got[0])
		}
		if makers[i] {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d have made it, want one", made)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", fi.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("%v is left", left)
	}
	refuse := errors.New("no")
	fail := func() ([]byte, error) { return nil, refuse }
	for _, c := range []struct {
		what, path string
		change     func(path string) error
		want       error
	}{
		{"what cannot be made", filepath.Join(t.TempDir(), "none"), func(string) error { return nil }, refuse},
		{"a long one", path, func(path string) error { return os.WriteFile(path, make([]byte, 101), 0o600) }, atoll.ErrInvalid},
		{"one for the group", path, func(path string) error { return os.Chmod(path, 0o640) }, atoll.ErrDenied},
		{"a directory", t.TempDir(), func(string) error { return nil }, atoll.ErrInvalid},
	} {
		if err := c.change(c.path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := LoadSecret("test", c.path, 100, fail); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

func TestOpenOwned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := OpenOwned("test", path, 0o022); !errors.Is(err, atoll.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for mode, want := range map[os.FileMode]error{0o644: nil, 0o600: nil, 0o664: atoll.ErrDenied, 0o606: atoll.ErrDenied} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		f, err := OpenOwned("test", path, 0o022)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("mode %04o: %v, want %v", mode, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
}
