//go:build linux

package image

import (
	"errors"
	"io/fs"
	"strings"
)

// Names with which a layer hides what those below it brought.
const (
	whiteout     = ".wh."
	whiteoutMeta = ".wh." // after whiteout: not about a file of that name
	opaque       = ".wh..opq"
)

// whiteout hides one file of the directory named parent, or all of them.
func (t *tree) whiteout(parent, hidden string) error {
	if strings.HasPrefix(hidden, whiteoutMeta) && hidden != opaque {
		return nil // left over from AUFS
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return damaged(nil, "hides nothing that can be named")
	}
	d, err := t.walk(t.top, parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if hidden == opaque {
		return t.hideAll(d)
	}
	return t.hide(d, hidden)
}

// hide removes what lower layers brought under that name; what the layer at
// hand brought stays, wherever in it the whiteout is.
func (t *tree) hide(d *dir, base string) error {
	if !t.written[place{d, base}] {
		return t.remove(d, base)
	}
	if sub := d.children[base]; sub != nil {
		return t.hideAll(sub)
	}
	return nil
}

func (t *tree) hideAll(d *dir) error {
	root, err := t.open(d)
	if err != nil {
		return err
	}
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.hide(d, name); err != nil {
			return err
		}
	}
	return nil
}

// remove removes what is under that name, if anything.
func (t *tree) remove(d *dir, base string) error {
	root, err := t.open(d)
	if err != nil {
		return err
	}
	delete(d.children, base)
	return root.RemoveAll(base)
}
