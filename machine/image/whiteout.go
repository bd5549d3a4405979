//go:build linux

package image

import (
	"errors"
	"io/fs"
	"strings"
)

// Names by which a layer hides files of the layers below it.
const (
	whiteout     = ".wh."
	whiteoutMeta = ".wh." // after whiteout: metadata, not the whiteout of a file
	opaque       = ".wh..opq"
)

// applyWhiteout hides one file of the directory named parent, or all.
func (t *tree) applyWhiteout(parent, hidden string) error {
	if strings.HasPrefix(hidden, whiteoutMeta) && hidden != opaque {
		return nil // a remainder of AUFS
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return newDamageError(nil, "whiteout of the invalid name %q", hidden)
	}
	d, err := t.resolveDir(t.top, parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if hidden == opaque {
		return t.hideChildren(d)
	}
	return t.hideEntry(d, hidden)
}

// hideEntry removes the files of lower layers under that name. Files of the current
// layer stay, even if they come before the whiteout.
func (t *tree) hideEntry(d *dir, base string) error {
	if !t.written[entryKey{d, base}] {
		return t.removeEntry(d, base)
	}
	if sub := d.children[base]; sub != nil {
		return t.hideChildren(sub)
	}
	return nil
}

func (t *tree) hideChildren(d *dir) error {
	root, err := t.openDir(d)
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
		if err := t.hideEntry(d, name); err != nil {
			return err
		}
	}
	return nil
}

// removeEntry removes base from d, with everything below, if it exists.
func (t *tree) removeEntry(d *dir, base string) error {
	root, err := t.openDir(d)
	if err != nil {
		return err
	}
	delete(d.children, base)
	return root.RemoveAll(base)
}
