package vz

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// The framework empties a console's file when a machine starts, and then writes without limit. So it
// gets a file of its own, which a follower copies, and whose space it frees.

const (
	pollInterval = 100 * time.Millisecond
	maxCopied    = 4 << 20 // bytes of the file that may be copied and still take space
	punchBlock   = 1 << 16 // a multiple of the block sizes of file systems
)

// A follower copies what is appended to a file.
type follower struct {
	path string
	to   io.WriteCloser
	at   int64 // the offset up to which the file is copied
	free int64 // the offset up to which the file takes no space any more
	stop chan struct{}
	done chan struct{}
}

// followFile starts a follower, which owns to from then on.
func followFile(path string, to io.WriteCloser) *follower {
	f := &follower{path: path, to: to, stop: make(chan struct{}), done: make(chan struct{})}
	go f.copyLoop()
	return f
}

func (f *follower) copyLoop() {
	defer close(f.done)
	defer f.to.Close()
	for {
		last := false
		select {
		case <-f.stop:
			last = true
		case <-time.After(pollInterval):
		}
		f.copyNew()
		if last {
			return
		}
	}
}

// copyNew copies what is new. A missing file counts as empty.
func (f *follower) copyNew() {
	file, err := os.OpenFile(f.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return
	}
	if size := info.Size(); size < f.at {
		if size == 0 {
			return // emptied by freeCopied, or by its writer
		}
		f.at, f.free = 0, 0 // its writer appends
	}
	n, _ := io.Copy(f.to, io.NewSectionReader(file, f.at, info.Size()-f.at)) // the next call copies the rest
	f.at += n
	if f.at-f.free > maxCopied {
		f.freeCopied(file)
	}
}

// freeCopied frees the space of what is copied. On a file system without holes it empties the file, and
// loses what is written at this moment.
func (f *follower) freeCopied(file *os.File) {
	end := f.at &^ (punchBlock - 1)
	if punchHole(file, f.free, end-f.free) == nil {
		f.free = end
	} else if file.Truncate(0) == nil { // its writer goes on at its offset, and what is before takes no space
		f.free = f.at
	}
}

// close copies the rest, and ends the follower.
func (f *follower) close() {
	close(f.stop)
	<-f.done
}
