//go:build unix

package dirfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// Open creates files below and at absolute links that stay in the tree, as Write does.
func TestOpenCreatesThroughLinks(t *testing.T) {
	f, dir, _ := newTree(t)
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"abs": "/work/dir", "dangling": "/work/dir/made"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Skipf("no symbolic links: %v", err)
		}
	}
	for name, at := range map[string]string{"abs/new": "dir/new", "dangling": "dir/made"} {
		file, err := f.Open(t.Context(), name, atoll.OpenOptions{Write: true, Create: true})
		if err != nil {
			t.Errorf("Open %s: %v", name, err)
			continue
		}
		if _, err := file.WriteAt(t.Context(), []byte("x"), 0); err != nil {
			t.Error(err)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, at)); err != nil || string(got) != "x" {
			t.Errorf("%s: %q, %v", at, got, err)
		}
	}
}
