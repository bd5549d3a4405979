package sshd

import (
	"encoding/binary"
	"io"
	"sync"
)

// A lockstep is the connection of an sftp session, that holds back what comes
// behind the opening of a file until that is answered. The library works on reads
// and writes beside all else: a client that guesses the handle of a file which is
// just being opened would have it use what is not there yet. Honest clients wait
// for the answer anyhow, which tells the handle.
type lockstep struct {
	io.ReadWriteCloser

	requests frames // of Read, which one goroutine calls
	answers  frames // of Write, likewise

	mu     sync.Mutex
	change sync.Cond
	open   int  // requests without an answer
	hold   bool // one of them opens a file
	closed bool
}

func newLockstep(rwc io.ReadWriteCloser) *lockstep {
	l := &lockstep{ReadWriteCloser: rwc}
	l.change.L = &l.mu
	return l
}

// The requests that open something.
const (
	fxpOpen    = 3
	fxpOpendir = 11
)

// Read implements io.Reader. The library reads no more than one packet at once.
func (l *lockstep) Read(p []byte) (int, error) {
	l.mu.Lock()
	for l.hold && l.open > 0 && !l.closed {
		l.change.Wait()
	}
	l.mu.Unlock()
	n, err := l.ReadWriteCloser.Read(p)
	l.requests.take(p[:n], func(kind byte) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open++
		l.hold = kind == fxpOpen || kind == fxpOpendir
	})
	return n, err
}

// Write implements io.Writer.
func (l *lockstep) Write(p []byte) (int, error) {
	n, err := l.ReadWriteCloser.Write(p)
	l.answers.take(p[:n], func(byte) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		l.change.Broadcast()
	})
	if err != nil {
		l.end()
	}
	return n, err
}

// Close implements io.Closer.
func (l *lockstep) Close() error {
	l.end()
	return l.ReadWriteCloser.Close()
}

// end lets Read go on, to find out that the connection has ended.
func (l *lockstep) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.change.Broadcast()
}

// frames finds where the packets of a stream end.
type frames struct {
	head [5]byte // length and type
	n    int     // bytes of it
	left int64   // bytes of the packet behind it
}

// take looks at what comes next, and calls whole for each packet of which that is
// the end.
func (f *frames) take(p []byte, whole func(kind byte)) {
	for len(p) > 0 {
		if f.n < len(f.head) {
			m := copy(f.head[f.n:], p)
			f.n, p = f.n+m, p[m:]
			if f.n < len(f.head) {
				return
			}
			f.left = max(int64(binary.BigEndian.Uint32(f.head[:]))-1, 0) // that there is no packet of length 0 is for others to say
		}
		m := min(f.left, int64(len(p)))
		f.left, p = f.left-m, p[m:]
		if f.left == 0 {
			whole(f.head[4])
			f.n = 0
		}
	}
}
