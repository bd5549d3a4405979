package pagecache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// All of a file is in memory afterwards, whether it was before or not, and its content is as before.
func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	size := int64(5<<20 + 1)
	want := make([]byte, size)
	want[size-1] = 1
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pages := (size + int64(os.Getpagesize()) - 1) / int64(os.Getpagesize())
	countPages := func() int64 {
		var st unix.Cachestat_t
		err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: uint64(size)}, &st, 0)
		if errors.Is(err, unix.ENOSYS) {
			t.Skip("the kernel does not count pages: it is older than 6.5")
		}
		if err != nil {
			t.Fatal(err)
		}
		return int64(st.Cache)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if n := countPages(); n == pages {
		t.Log("the file system has its files in memory only")
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a file on the disk", func() error { return Load(f) }},
		{"a file in memory", func() error { return Load(f) }},
		{"again", func() error { return Reload(path) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if n := countPages(); n != pages {
			t.Errorf("%s: %d pages of %d", step.name, n, pages)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("the content has changed: %v", err)
	}
	if err := Reload(path + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
