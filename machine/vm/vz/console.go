package vz

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// The framework empties a console's file when a machine begins, and writes to it without
// end. So it gets one of its own, which is followed, and made smaller as it is.

const (
	look  = 100 * time.Millisecond
	spare = 4 << 20 // what of it may have been read and still take space
)

// A follower passes on what is appended to a file.
type follower struct {
	path string
	to   io.WriteCloser
	at   int64 // how far it has read
	free int64 // up to where the file takes no space any more
	stop chan struct{}
	done chan struct{}
}

// follow owns to from then on.
func follow(path string, to io.WriteCloser) *follower {
	f := &follower{path: path, to: to, stop: make(chan struct{}), done: make(chan struct{})}
	go f.run()
	return f
}

func (f *follower) run() {
	defer close(f.done)
	defer f.to.Close()
	for {
		last := false
		select {
		case <-f.stop:
			last = true
		case <-time.After(look):
		}
		f.pass()
		if last {
			return
		}
	}
}

// pass passes on what is new. A file that is not there yet is none.
func (f *follower) pass() {
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
			return // as we made it
		}
		f.at, f.free = 0, 0 // its writer appends
	}
	n, _ := io.Copy(f.to, io.NewSectionReader(file, f.at, info.Size()-f.at)) // the rest comes the next time
	f.at += n
	if f.at-f.free > spare && file.Truncate(0) == nil { // who writes goes on where he was: what is before takes no space
		f.free = f.at
	}
}

// close passes on what is left, and ends.
func (f *follower) close() {
	close(f.stop)
	<-f.done
}
