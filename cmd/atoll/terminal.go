package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/seed46cd37a8/atoll"
)

// terminalSize returns the size of the first of our streams that is a terminal, or 80x24.
func (a *app) terminalSize() atoll.Size {
	for _, f := range []*os.File{a.stdout, a.stdin, a.stderr} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return atoll.Size{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return atoll.Size{Rows: 24, Cols: 80}
}

// makeRaw sets the terminal to raw mode, in which it forwards every byte, including ^C. restore undoes that; it may
// be called more than once, from any goroutine.
func makeRaw(f *os.File) (restore func(), err error) {
	state, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	var once sync.Once
	return func() { once.Do(func() { _ = term.Restore(int(f.Fd()), state) }) }, nil
}

// A detachReader forwards input until the keys are pressed in sequence; then it calls detached and ends. It forwards
// an incomplete sequence of keys as input.
type detachReader struct {
	r        io.Reader
	keys     []byte
	detached func()

	seen int    // number of keys pressed so far
	rest []byte // read, but not yet forwarded
	err  error
}

func (d *detachReader) Read(p []byte) (int, error) {
	for len(d.rest) == 0 && d.err == nil {
		d.fillBuffer(len(p))
	}
	if len(d.rest) > 0 {
		n := copy(p, d.rest)
		d.rest = d.rest[n:]
		return n, nil
	}
	return 0, d.err
}

// fillBuffer reads input and looks for the keys.
func (d *detachReader) fillBuffer(size int) {
	buf := make([]byte, max(size, 1))
	n, err := d.r.Read(buf)
	for _, b := range buf[:n] {
		if b == d.keys[d.seen] {
			if d.seen++; d.seen == len(d.keys) {
				d.err = io.EOF
				d.detached()
				return
			}
			continue
		}
		d.rest = append(d.rest, d.keys[:d.seen]...)
		d.seen = 0
		if b == d.keys[0] && len(d.keys) > 1 {
			d.seen = 1
			continue
		}
		d.rest = append(d.rest, b)
	}
	if err != nil {
		d.rest = append(d.rest, d.keys[:d.seen]...)
		d.seen, d.err = 0, err
	}
}

// defaultDetachKeys are the detach keys of docker.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseKeys parses keys in docker's syntax: single characters, or "ctrl-" and a letter or one of @[\\]^_, separated
// by commas. "" means none.
func parseKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for name := range strings.SplitSeq(s, ",") {
		c, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
		switch {
		case ctrl && len(c) == 1 && (c[0] >= 'a' && c[0] <= 'z'):
			keys = append(keys, c[0]-'a'+1)
		case ctrl && len(c) == 1 && bytes.IndexByte([]byte(`@[\]^_`), c[0]) >= 0:
			keys = append(keys, c[0]-'@')
		case !ctrl && len(name) == 1:
			keys = append(keys, name[0])
		default:
			return nil, usageErrorf("detach keys %q: write them like ctrl-p,ctrl-q or a single character", s)
		}
	}
	return keys, nil
}
