package fsutil

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Holes take up no space.
func TestUsed(t *testing.T) {
	const size, data = 64 << 20, 1 << 20
	path := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(path, make([]byte, data), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	must(t, errors.Join(f.Sync(), f.Truncate(size), f.Close()))
	used, err := Used(path)
	if err != nil || used < data || used > size || runtime.GOOS == "linux" && used > 2*data {
		t.Errorf("%d bytes, %v; want %d and not %d", used, err, data, size)
	}
	if _, err := Used(path + "-not"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}
