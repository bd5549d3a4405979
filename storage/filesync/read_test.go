package filesync_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// A version can be read without pulling it into a directory.
func TestRead(t *testing.T) {
	b, p := openBucket(t), newPlace(t)
	r := newRemote(t, b, filesync.Options{})
	for range r.Files(t.Context(), 0) {
		t.Error("there is a file where there is no version")
	}
	if _, _, err := r.Open(t.Context(), 0, "a", 10); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("Open without a version: %v", err)
	}
	p.writeText("a", "one")
	p.writeText("d/empty", "")
	p.writeText("large", strings.Repeat("x", 300<<10))
	if err := os.Symlink("a", p.filePath("link")); err != nil {
		t.Fatal(err)
	}
	first := p.push(r)
	p.writeText("a", "two, and more")
	p.push(r)

	list := func(version int64) string {
		var all []string
		for f, err := range r.Files(t.Context(), version) {
			if err != nil {
				t.Fatalf("Files: %v", err)
			}
			all = append(all, fmt.Sprintf("%s:%d", f.Path, f.Size))
		}
		return strings.Join(all, " ")
	}
	if got, want := list(first.Version), "a:3 d:0 d/empty:0 large:307200 link:1"; got != want {
		t.Errorf("the first version: %s, want %s", got, want)
	}
	if got, want := list(0), "a:13 d:0 d/empty:0 large:307200 link:1"; got != want {
		t.Errorf("the latest version: %s, want %s", got, want)
	}
	for _, err := range r.Files(t.Context(), 7) {
		if atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("Files of no version: %v", err)
		}
	}

	for name, want := range map[string]string{"a": "two, and more", "d/empty": "", "large": strings.Repeat("x", 300<<10)} {
		body, f, err := r.Open(t.Context(), 0, name, 1<<20)
		if err != nil {
			t.Fatalf("Open %s: %v", name, err)
		}
		got, err := io.ReadAll(body)
		if string(got) != want || err != nil || f.Size != int64(len(want)) {
			t.Errorf("%s: %d bytes, %v, %+v", name, len(got), err, f)
		}
		body.Close()
	}
	for name, want := range map[string]atoll.Kind{"b": atoll.ErrNotExist, "d": atoll.ErrInvalid, "link": atoll.ErrInvalid, "large": atoll.ErrExhausted} {
		if _, _, err := r.Open(t.Context(), 0, name, 1000); atoll.KindOf(err) != want {
			t.Errorf("Open %s: %v, want %s", name, err, want)
		}
	}

	// Damaged content is never returned.
	objects, err := filepath.Glob(filepath.Join(strings.TrimPrefix(b.String(), "file://"), "agents/a/objects/*/*"))
	if err != nil || len(objects) == 0 {
		t.Fatal(objects, err)
	}
	for _, o := range objects {
		data, err := os.ReadFile(o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			data[i] ^= 1
		}
		if err := os.WriteFile(o, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.Open(t.Context(), 0, "a", 1000); atoll.KindOf(err) != atoll.ErrInternal {
		t.Errorf("Open of a file whose bytes are others: %v", err)
	}
}
