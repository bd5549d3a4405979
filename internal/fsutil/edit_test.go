package fsutil

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// EditFile keeps modes and links, and leaves the file alone if the edit fails.
func TestEditFile(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "link.json")
	if err := os.WriteFile(real, []byte("{}\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real.json", link); err != nil {
		t.Skip(err) // Windows, without the right to
	}
	add := func(data []byte) ([]byte, error) {
		if string(data) == "{" {
			return nil, errors.New("not valid JSON")
		}
		return bytes.ReplaceAll(append(data, "{added}"...), []byte("{added}{added}"), []byte("{added}")), nil
	}
	if changed, err := EditFile(link, 0o600, add); err != nil || !changed {
		t.Fatalf("EditFile: %v, %v", changed, err)
	}
	if changed, err := EditFile(link, 0o600, add); err != nil || changed {
		t.Errorf("EditFile again: %v, %v", changed, err)
	}
	if to, err := os.Readlink(link); err != nil || to != "real.json" {
		t.Errorf("the link leads to %s, %v", to, err)
	}
	info, err := os.Stat(real)
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o640 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EditFile(broken, 0o600, add); err == nil || !strings.HasPrefix(err.Error(), broken+": not valid JSON") {
		t.Errorf("a broken file: %v", err)
	}
	if data, err := os.ReadFile(broken); err != nil || string(data) != "{" {
		t.Errorf("the broken file has %q, %v", data, err)
	}
	changing := func(data []byte) ([]byte, error) {
		if err := os.WriteFile(broken, []byte("other"), 0o600); err != nil {
			t.Fatal(err)
		}
		return []byte("ours"), nil
	}
	if _, err := EditFile(broken, 0o600, changing); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("a file that changes meanwhile: %v", err)
	}
	fresh := filepath.Join(dir, "a", "b", "new.json")
	if changed, err := EditFile(fresh, 0o600, add); err != nil || !changed {
		t.Errorf("a new file: %v, %v", changed, err)
	}
	dangling := filepath.Join(dir, "dangling.json")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	if _, err := EditFile(dangling, 0o600, add); err == nil || !strings.Contains(err.Error(), "the link leads to a file that does not exist") {
		t.Errorf("a dangling link: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// Concurrent edits wait for each other, and none is lost.
func TestEditFileConcurrently(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new", "file")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := EditFile(name, 0o600, func(data []byte) ([]byte, error) { return append(data, 'x'), nil }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if data, err := os.ReadFile(name); err != nil || len(data) != 20 {
		t.Errorf("the file has %q, %v", data, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(name)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A failed edit leaves no new directory.
func TestEditFileFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	fails := func([]byte) ([]byte, error) { return nil, errors.New("no") }
	if _, err := EditFile(filepath.Join(dir, "file"), 0o600, fails); err == nil || !strings.HasSuffix(err.Error(), "file: no") {
		t.Errorf("EditFile: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory remains: %v", err)
	}
}
