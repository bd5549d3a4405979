//go:build unix

package objectstore_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// The objects of a plain bucket are files with their own names and nothing else.
func TestPlain(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	b := d.Plain()
	ctx := t.Context()
	put := func(key, text string, when objectstore.Condition) error {
		_, err := b.Put(ctx, key, strings.NewReader(text), int64(len(text)), when)
		return err
	}
	for _, key := range []string{"7/A b.txt", "7/c++", "7/x+object", "8/d"} {
		if err := put(key, key, objectstore.Condition{Absent: true}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(key))); string(got) != key {
			t.Errorf("the file %s holds %q, %v", key, got, err)
		}
	}
	putText(t, d, "9/own", "x")
	if err := put("8/d", "new", objectstore.Condition{Absent: true}); atoll.KindOf(err) != atoll.ErrConflict {
		t.Errorf("Put over an object: %v", err)
	}
	if err := put("8/d", "new", objectstore.Condition{}); err != nil {
		t.Error(err)
	}
	if err := put("8/d", "new", objectstore.Condition{Tag: "x"}); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("Put with a tag: %v", err)
	}
	for _, key := range []string{"+lock/00", "../x", ""} {
		if err := put(key, "x", objectstore.Condition{}); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("Put of %q: %v", key, err)
		}
	}
	if _, err := b.Put(ctx, "short", strings.NewReader("x"), 2, objectstore.Condition{}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Put of a short reader: %v", err)
	}
	r, o, err := b.Get(ctx, "8/d", 1, 1)
	if err != nil || o.Size != 3 {
		t.Fatalf("Get: %+v, %v", o, err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); string(got) != "e" || err != nil {
		t.Errorf("Get: %q, %v", got, err)
	}
	for _, key := range []string{"8", "8/none"} {
		if _, _, err := b.Get(ctx, key, 0, -1); atoll.KindOf(err) != atoll.ErrNotExist {
			t.Errorf("Get of %s: %v", key, err)
		}
	}
	if o, err := b.Stat(ctx, "7/c++"); err != nil || o.Size != 5 || o.Modified.IsZero() {
		t.Errorf("Stat: %+v, %v", o, err)
	}
	list := func(prefix string) string {
		var keys []string
		for o, err := range b.List(ctx, prefix) {
			if err != nil {
				t.Error(err)
			}
			keys = append(keys, o.Key)
		}
		return fmt.Sprintf("%q", keys)
	}
	if got := list("7/"); got != `["7/A b.txt" "7/c++" "7/x+object"]` {
		t.Errorf("List: %s", got)
	}
	for _, l := range []objectstore.FolderLister{d, b.(objectstore.FolderLister)} {
		if got, err := l.Folders(ctx, ""); fmt.Sprint(got) != "[7 8 9]" || err != nil {
			t.Errorf("Folders: %v, %v", got, err)
		}
	}
	if err := b.Delete(ctx, "7/A b.txt", "7/c++", "7/x+object", "none"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "7")); err == nil {
		t.Error("an empty directory remains")
	}
}
