//go:build unix

package objectstore_test

import "testing"

// A program is present until it ends its presence; of a program elsewhere nothing is
// known.
func TestPresence(t *testing.T) {
	name := t.TempDir()
	a, b := openDir(t, name), openDir(t, name)
	mark, end, err := a.ShowPresence("one")
	if err != nil {
		t.Fatal(err)
	}
	if a.IsGone("one", mark) || b.IsGone("one", mark) {
		t.Error("a present program is gone")
	}
	if b.IsGone("two", "another machine") || b.IsGone("two", "") {
		t.Error("a program elsewhere is gone")
	}
	if !b.IsGone("two", mark) {
		t.Error("a program that was never present is there")
	}
	end()
	for range 2 { // asking makes no program present
		if !b.IsGone("one", mark) {
			t.Error("a program is present after its end")
		}
	}
}
