package main

import (
	"archive/tar"
	"context"
	"io"
	"path"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
	"github.com/seed46cd37a8/atoll/internal/tarstream"
)

// losses collects what a copy leaves out.
type losses struct {
	setID bool   // set special bits
	base  string // the directory of the target that names are relative to
	found []loss
	count int
	bits  []specialBits
	more  int // files with special bits besides bits
}

type loss struct{ name, what string }

// specialBits are the mode of a file of the source that has special bits.
type specialBits struct {
	name string // relative to base
	mode uint32
}

// The most losses that are printed, and the most files whose special bits are checked.
const (
	maxLosses = 20
	maxBits   = 1000
)

func (l *losses) addLoss(name, what string) {
	if l.count++; len(l.found) < maxLosses {
		l.found = append(l.found, loss{name, what})
	}
}

// setIDBits are the set-user-ID and set-group-ID bits.
const setIDBits = 0o6000

// addBits adds the mode of a file if it has special bits.
func (l *losses) addBits(name string, mode uint32) {
	switch {
	case mode&setIDBits == 0:
	case len(l.bits) < maxBits:
		l.bits = append(l.bits, specialBits{name, mode & 0o7777})
	default:
		l.more++
	}
}

// addEntry adds what an entry of a tar stream says, whose name is below dir in the copy, and reports whether that is all
// that it is for.
func (l *losses) addEntry(h *tar.Header, dir string) (isNote bool) {
	if name, what, ok := tarstream.ParseNote(h); ok {
		l.addLoss(path.Join(dir, name), what)
		return true
	}
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeDir {
		l.addBits(path.Join(dir, h.Name), uint32(h.Mode))
	}
	return false
}

// passTar copies a tar stream as it is, and looks at its entries. The reader of the copy judges a damaged stream.
func (l *losses) passTar(w io.Writer, r io.Reader) error {
	in := tarstream.NewReader(io.TeeReader(r, w))
	for {
		h, err := in.Next()
		if err != nil {
			_, err := io.Copy(w, r)
			return err
		}
		l.addEntry(h.Header, "")
	}
}

// checkBits compares the special bits of the source with those of the target, and sets them with setID.
func (l *losses) checkBits(ctx context.Context, to *location) {
	if to.fs == nil { // a tar stream has them
		return
	}
	for _, b := range l.bits {
		name := path.Join(l.base, b.name)
		info, err := to.fs.Stat(ctx, name)
		if err != nil || b.mode&^info.Mode&setIDBits == 0 {
			continue // all are set, or the copy failed before
		}
		what := describeBits(b.mode &^ info.Mode)
		if !l.setID {
			l.addLoss(b.name, what+" (--set-id sets it)")
			continue
		}
		if err := atoll.ChangeFile(ctx, to.fs, name, atoll.FileChange{Mode: &b.mode, NoFollow: true}); err != nil {
			l.addLoss(b.name, what+": "+err.Error())
		}
	}
	if l.more > 0 {
		l.addLoss("further files", "special bits, perhaps: too many have them")
	}
}

func describeBits(mode uint32) string {
	switch mode & setIDBits {
	case 0o4000:
		return "the set-user-ID bit"
	case 0o2000:
		return "the set-group-ID bit"
	}
	return "the set-user-ID and set-group-ID bits"
}

// printLosses prints what a copy has left out on stderr.
func (a *app) printLosses(l *losses) {
	for _, x := range l.found {
		a.printMessage("left out: %s: %s", printable.Escape(x.name, ""), printable.Escape(x.what, ""))
	}
	if more := l.count - len(l.found); more > 0 {
		a.printMessage("left out: %d more", more)
	}
}
