package sshd

import (
	"encoding/binary"
	"io"
	"sync"
)

// A lockstep is the connection of an sftp session that holds back requests behind the
// opening of a file until that is answered. The library handles reads and writes
// concurrently: a client that guesses the handle of a file being opened could make it
// use a missing file. Honest clients wait for the answer anyway, since it contains the
// handle.
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

// Read implements io.Reader. The library reads at most one packet at once.
func (l *lockstep) Read(p []byte) (int, error) {
	l.mu.Lock()
	for l.hold && l.open > 0 && !l.closed {
		l.change.Wait()
	}
	l.mu.Unlock()
	n, err := l.ReadWriteCloser.Read(p)
	l.requests.scan(p[:n], func(kind byte) {
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
	l.answers.scan(p[:n], func(byte) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		l.change.Broadcast()
	})
	if err != nil {
		l.release()
	}
	return n, err
}

// Close implements io.Closer.
func (l *lockstep) Close() error {
	l.release()
	return l.ReadWriteCloser.Close()
}

// release makes Read continue, so that it notices the end of the connection.
func (l *lockstep) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.change.Broadcast()
}

// frames finds the packets in a stream.
type frames struct {
	head [5]byte // length and type
	n    int     // bytes of it
	left int64   // remaining bytes of the packet
}

// scan processes the next bytes, and calls whole at the end of each packet.
func (f *frames) scan(p []byte, whole func(kind byte)) {
	for len(p) > 0 {
		if f.n < len(f.head) {
			m := copy(f.head[f.n:], p)
			f.n, p = f.n+m, p[m:]
			if f.n < len(f.head) {
				return
			}
			f.left = max(int64(binary.BigEndian.Uint32(f.head[:]))-1, 0) // others reject packets of length 0
		}
		m := min(f.left, int64(len(p)))
		f.left, p = f.left-m, p[m:]
		if f.left == 0 {
			whole(f.head[4])
			f.n = 0
		}
	}
}
