//go:build unix

package fsutil

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// makeNested makes so many directories, each in the one before, and a file in the
// last: deeper than a path can name.
func makeNested(t testing.TB, top string, levels int) {
	t.Helper()
	must(t, os.MkdirAll(top, 0o755))
	dir, err := os.OpenRoot(top)
	must(t, err)
	for range levels {
		must(t, dir.Mkdir("d", 0o755))
		sub, err := dir.OpenRoot("d")
		must(t, err)
		dir.Close()
		dir = sub
	}
	must(t, dir.WriteFile("file", nil, 0o644))
	dir.Close()
}

func TestRemoveAll(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T, path string)
	}{
		{"nothing", func(*testing.T, string) {}},
		{"file", func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0)) }},
		{"empty directory", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0)) }},
		{"at the limit", func(t *testing.T, path string) { makeNested(t, path, maxDepth) }},
		{"above the limit", func(t *testing.T, path string) { makeNested(t, path, maxDepth+1) }},
		{"many times the limit", func(t *testing.T, path string) { makeNested(t, path, 5*maxDepth) }},
		{"wide", func(t *testing.T, path string) {
			for _, sub := range []string{"a", "b", "c"} {
				makeNested(t, filepath.Join(path, "x", sub), 3*maxDepth)
			}
			for i := range batchSize + 100 {
				must(t, os.WriteFile(filepath.Join(path, "x", strconv.Itoa(i)), nil, 0o644))
			}
		}},
		{"sealed", func(t *testing.T, path string) {
			makeNested(t, path, 3)
			for sub := filepath.Join(path, "d", "d"); len(sub) >= len(path); sub = filepath.Dir(sub) {
				must(t, os.Chmod(sub, map[int]fs.FileMode{0: 0, 2: 0o444, 4: 0o311}[len(sub)-len(path)]))
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "tree")
			tt.make(t, path)
			must(t, RemoveAll(path+"/"))
			if entries, err := os.ReadDir(dir); len(entries) > 0 || err != nil {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
	must(t, RemoveAll(filepath.Join(t.TempDir(), "missing", "tree")))
}

// RemoveAll does not remove the targets of links in the tree.
func TestRemoveAllFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	tree, other := filepath.Join(dir, "tree"), filepath.Join(dir, "other")
	for _, path := range []string{tree, other} {
		must(t, os.Mkdir(path, 0o755))
		must(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
	}
	for i, target := range []string{other, "../other", "file", "."} {
		must(t, os.Symlink(target, filepath.Join(tree, string(rune('a'+i)))))
	}
	must(t, os.Symlink(other, filepath.Join(dir, "link")))
	must(t, RemoveAll(tree))
	must(t, RemoveAll(filepath.Join(dir, "link")))
	if fileExists(tree) || fileExists(filepath.Join(dir, "link")) || !fileExists(filepath.Join(other, "file")) {
		t.Error("more was removed than the tree, or less")
	}
}

// Programs inside a sandbox can nest directories without limit: RemoveAll must remove
// them with few open files. The test runs itself again with a low limit.
func TestRemoveAllWithFewFiles(t *testing.T) {
	if path := os.Getenv("DISK_TEST_TREE"); path != "" {
		must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 2*maxDepth + 30, Max: 2*maxDepth + 30}))
		must(t, RemoveAll(path))
		return
	}
	path := filepath.Join(t.TempDir(), "tree")
	makeNested(t, path, 2000)
	cmd := exec.Command(os.Args[0], "-test.run=^TestRemoveAllWithFewFiles$")
	cmd.Env = append(os.Environ(), "DISK_TEST_TREE="+path)
	if out, err := cmd.CombinedOutput(); err != nil || fileExists(path) {
		t.Errorf("%v; there still: %v\n%s", err, fileExists(path), out)
	}
}

// Concurrent calls remove a tree together.
func TestRemoveAllAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tree")
	for _, sub := range []string{"a", "b", "c", "d"} {
		makeNested(t, filepath.Join(path, sub), 4*maxDepth)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := RemoveAll(path); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if fileExists(path) {
		t.Error("it is still there")
	}
}
