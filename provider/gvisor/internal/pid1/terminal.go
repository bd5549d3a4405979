//go:build linux

package pid1

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// gVisor's terminals raise the signals of keys, but do not echo these, do not drop what was typed before them, and have no
// key that quotes the next one. They lose an end of file if more input arrives before it is read. So the client does the
// former, and waits after an end of file.

// A mode is a struct termios of the kernel.
type mode struct {
	Iflag, Oflag, Cflag, Lflag uint32
	Line                       uint8
	Cc                         [19]uint8
}

// A keyboard knows which keys are special.
type keyboard struct {
	mode   mode // at the last input
	quoted bool // the next key is quoted; it may arrive alone
}

// A kind says what a key does.
type kind int

const (
	plainKey  kind = iota
	signalKey      // raises a signal
	quoteKey       // quotes the next one
	quotedKey      // follows a quoteKey
	endKey         // is the end of file
)

// endTime is the time in which a process reads an end of file.
const endTime = 100 * time.Millisecond

// splitKeys returns the number of plain keys at the beginning of data in mode m, and the kind of the key after them.
func (k *keyboard) splitKeys(m *mode, data []byte) (n int, next kind) {
	if k.mode != *m {
		k.mode, k.quoted = *m, false
	}
	if k.quoted {
		return 0, quotedKey
	}
	signals := m.Lflag&unix.ISIG != 0
	lines := m.Lflag&unix.ICANON != 0
	quotes := lines && m.Lflag&unix.IEXTEN != 0
	for i, c := range data {
		switch {
		case c == 0: // _POSIX_VDISABLE
		case signals && (c == m.Cc[unix.VINTR] || c == m.Cc[unix.VQUIT] || c == m.Cc[unix.VSUSP]):
			return i, signalKey
		case quotes && c == m.Cc[unix.VLNEXT]:
			return i, quoteKey
		case lines && c == m.Cc[unix.VEOF]:
			return i, endKey
		}
	}
	return len(data), plainKey
}

// isControl reports whether a key may be special.
func isControl(c byte) bool { return c < ' ' || c == 0x7f }

// typeInput is writeInput for a terminal.
func (p *Process) typeInput() error {
	input := p.input
	if !p.keys.quoted && !slices.ContainsFunc(input.pending, isControl) {
		return p.writePlain(len(input.pending))
	}
	l := newList()
	at := l.Reserve(binary.Size(mode{})/8 + 1)
	get := l.AddCall(unix.SYS_IOCTL, uint64(input.fd), unix.TCGETS, wordAt(at))
	w, err := p.in.line.doList(l)
	if err != nil {
		return err
	}
	if w.Check("", get) != nil { // no process has the terminal
		input.dropPending(len(input.pending))
		return nil
	}
	var m mode
	_ = binary.Read(bytes.NewReader(w[at*8:]), binary.LittleEndian, &m) // it is long enough
	n, next := p.keys.splitKeys(&m, input.pending)
	if n > 0 {
		return p.writePlain(n)
	}
	key := input.pending[0]
	l = newList()
	switch next {
	case endKey:
		input.held = true
		time.AfterFunc(endTime, func() { p.in.queueCall(func() error { input.held = false; return nil }) })
		return p.writePlain(1)
	case signalKey:
		if m.Lflag&unix.NOFLSH == 0 {
			l.AddCall(unix.SYS_IOCTL, uint64(input.fd), unix.TCFLSH, unix.TCOFLUSH) // input on its way to the process
		}
		l.AddCall(unix.SYS_WRITE, uint64(input.fd), l.AddBytes([]byte{key}), 1)
	case quotedKey:
		quoting := m
		quoting.Lflag &^= unix.ISIG | unix.ECHO
		quoting.Cc = [19]uint8{}
		l.AddCall(unix.SYS_IOCTL, uint64(input.fd), unix.TCSETS, l.addMode(quoting))
		l.AddCall(unix.SYS_WRITE, uint64(input.fd), l.AddBytes([]byte{key}), 1)
		l.AddCall(unix.SYS_IOCTL, uint64(input.fd), unix.TCSETS, l.addMode(m))
	}
	if _, err := p.in.line.doList(l); err != nil {
		return err
	}
	p.keys.quoted = next == quoteKey
	if m.Lflag&unix.ECHO != 0 && m.Lflag&unix.ECHOCTL != 0 {
		p.outputs[0].insertBytes(echoOf(key, next))
	}
	input.dropPending(1)
	return nil
}

// echoOf returns what the screen shows of a key that is not plain.
func echoOf(key byte, kind kind) []byte {
	switch {
	case kind == quoteKey:
		return []byte("^\b")
	case isControl(key) && key != '\t':
		return []byte{'^', key ^ 0x40}
	}
	return []byte{key}
}

// addMode returns the address of a copy of m.
func (l *list) addMode(m mode) uint64 {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, m)
	return l.AddBytes(b.Bytes())
}
