//go:build unix

package dirfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Whatever time a program gives a file, its Changed or its Inode tells that it is another.
func TestChangedAndInode(t *testing.T) {
	f, dir, _ := newTree(t)
	name, past := filepath.Join(dir, "f"), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, past, past); err != nil {
			t.Fatal(err)
		}
	}
	info := func() atoll.FileInfo {
		t.Helper()
		fi, err := f.Stat(t.Context(), "f")
		if err != nil {
			t.Fatal(err)
		}
		if fi.Changed.IsZero() || !fi.Modified.Equal(past) {
			t.Fatalf("Stat: %+v", fi)
		}
		return fi
	}
	write(name, "aaaa")
	write(name+".new", "bbbb")
	first := info()
	if again := info(); !again.Changed.Equal(first.Changed) || again.Inode != first.Inode {
		t.Errorf("Stat: %+v, then %+v", first, again)
	}
	for second := first; second.Changed.Equal(first.Changed); second = info() { // within one tick of the clock
		write(name, "cccc")
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
	if third := info(); third.Inode == first.Inode && first.Inode != 0 {
		t.Errorf("another file has the inode %d, too", third.Inode)
	}
}

// New sets set-user-ID bits only if the options say so.
func TestSetIDOption(t *testing.T) {
	for want, setID := range map[uint32]bool{0o755: false, 0o4755: true} {
		f, err := New("/work", t.TempDir(), Options{UID: -1, GID: -1, SetID: setID})
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, f, "f", "x", atoll.WriteOptions{Mode: 0o4755})
		if fi, err := f.Stat(t.Context(), "f"); err != nil || fi.Mode != want {
			t.Errorf("SetID %v: the mode is %o, %v; want %o", setID, fi.Mode, err, want)
		}
		f.Close()
	}
}
