//go:build linux

package pid1

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A list is a list of system calls for the program to execute. Their results, and other words that they write, are the
// answer.
type list struct {
	steps []*step
	words []uint64 // of the answer, with their values before
	data  []byte   // what the calls read
}

// A step is a call of a list. The next one follows it, unless another is given for the sign of its result.
type step struct {
	nr         uint64
	args       []uint64
	word       int  // of the answer: where the result is stored
	answers    bool // it sends the answer
	onPositive *step
	onZero     *step
	onNegative *step
}

// finish, in place of a step, ends the list.
var finish = &step{}

// Where the parts of a list are in the program's memory.
const (
	wordsBase = workBase
	wordsSize = 256 << 10
	readBase  = wordsBase + wordsSize // what a program has written
	readSize  = 32 << 10
	stepsBase = readBase + readSize
	stepsSize = 512 << 10
	bytesBase = stepsBase + stepsSize
	bytesSize = workBase + workSize - bytesBase
)

// notExecuted is the result of a call that was not executed.
const notExecuted = math.MinInt64

// addCall adds a system call.
func (l *list) addCall(nr uintptr, args ...uint64) *step {
	s := &step{nr: uint64(nr), args: args, word: l.reserveWords(1)}
	var none int64 = notExecuted
	l.words[s.word] = uint64(none)
	l.steps = append(l.steps, s)
	return s
}

// reserveWords adds n words to the answer and returns the index of the first.
func (l *list) reserveWords(n int) int {
	l.words = append(l.words, make([]uint64, n)...)
	return len(l.words) - n
}

// wordAt returns the address of a word of the answer.
func wordAt(i int) uint64 { return wordsBase + uint64(i)*8 }

// addBytes returns the address of a copy of b.
func (l *list) addBytes(b []byte) uint64 {
	for len(l.data)%8 != 0 {
		l.data = append(l.data, 0)
	}
	l.data = append(l.data, b...)
	return bytesBase + uint64(len(l.data)-len(b))
}

func (l *list) addText(s string) uint64 { return l.addBytes(append([]byte(s), 0)) }

// addTexts returns the address of an array of pointers to copies of the strings, with nil at its end.
func (l *list) addTexts(list []string) uint64 {
	var pointers []byte
	for _, s := range list {
		pointers = binary.LittleEndian.AppendUint64(pointers, l.addText(s))
	}
	return l.addBytes(append(pointers, make([]byte, 8)...))
}

// addAnswer adds the call that sends the answer.
func (l *list) addAnswer() *step {
	s := l.addCall(unix.SYS_WRITE, ReplyFD, wordsBase, 0)
	s.answers = true
	return s
}

// A line is the connection to the program. It is not safe for concurrent use.
type line struct {
	requests io.Writer
	replies  io.Reader
	first    uint64 // address of the program's own calls
	sent     bytes.Buffer
	late     func(n int) // called for each second that an answer takes, with their number
}

// messageSize is the size of a message with its head: a pipe takes it whole.
const messageSize = 4096

// loadBytes sends bytes to an address of the program. Afterwards the program makes the call at next.
func (l *line) loadBytes(address uint64, b []byte, next uint64) error {
	const head = 24
	for len(b) > 0 {
		if l.sent.Len()+head >= messageSize {
			if err := l.flushSent(); err != nil {
				return err
			}
		}
		part := b[:min(len(b), messageSize-head-l.sent.Len())]
		b = b[len(part):]
		then := l.ownCall(callWait)
		if len(b) == 0 {
			then = next
		}
		_ = binary.Write(&l.sent, binary.LittleEndian, [3]uint64{address, uint64(len(part)), then})
		l.sent.Write(part)
		address += uint64(len(part))
	}
	return nil
}

func (l *line) flushSent() error {
	defer l.sent.Reset()
	_, err := l.requests.Write(l.sent.Bytes())
	return err
}

func (l *line) ownCall(i int) uint64 { return l.first + uint64(i*callSize) }

// sendList has the program execute a list.
func (l *line) sendList(list *list) error {
	if len(list.words)*8 > wordsSize || len(list.steps)*callSize > stepsSize || len(list.data) > bytesSize {
		return &Error{"arguments", unix.E2BIG}
	}
	at := map[*step]uint64{finish: l.ownCall(callWait)}
	for i, s := range list.steps {
		at[s] = stepsBase + uint64(i*callSize)
	}
	var calls bytes.Buffer
	for i, s := range list.steps {
		next := stepsBase + uint64((i+1)*callSize)
		if i == len(list.steps)-1 {
			next = l.ownCall(callWait)
		}
		if s.answers {
			s.args[2] = uint64(len(list.words)) * 8
		}
		c := call{nr: s.nr, positive: next, zero: next, negative: next, result: wordAt(s.word)}
		copy(c.args[:], s.args)
		if len(s.args) > len(c.args) {
			copy(c.more[:], s.args[len(c.args):])
		}
		if s.onPositive != nil {
			c.positive = at[s.onPositive]
		}
		if s.onZero != nil {
			c.zero = at[s.onZero]
		}
		if s.onNegative != nil {
			c.negative = at[s.onNegative]
		}
		_ = binary.Write(&calls, binary.LittleEndian, c)
	}
	var words []byte
	for _, w := range list.words {
		words = binary.LittleEndian.AppendUint64(words, w)
	}
	if err := l.loadBytes(wordsBase, words, l.ownCall(callWait)); err != nil {
		return err
	}
	if err := l.loadBytes(bytesBase, list.data, l.ownCall(callWait)); err != nil {
		return err
	}
	if err := l.loadBytes(stepsBase, calls.Bytes(), stepsBase); err != nil {
		return err
	}
	return l.flushSent()
}

// endWait ends the program's wait for events.
func (l *line) endWait() error {
	if err := l.loadBytes(readBase, []byte{0}, l.ownCall(callWait)); err != nil {
		return err
	}
	return l.flushSent()
}

// answerTime is the time within which the program answers, unless something stopped it.
const answerTime = time.Second

// watchAnswer calls late for each answerTime until stop is called. It gets the number of its call, from 1.
func (l *line) watchAnswer() (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(answerTime, func() {
		for n := 1; ; n++ {
			l.late(n)
			select {
			case <-done:
				return
			case <-time.After(answerTime):
			}
		}
	})
	return func() { timer.Stop(); close(done) }
}

// receiveAnswer returns the answer of n words.
func (l *line) receiveAnswer(n int) (words, error) {
	defer l.watchAnswer()()
	return l.awaitAnswer(n)
}

// awaitAnswer returns the answer of n words to a list that may take its time.
func (l *line) awaitAnswer(n int) (words, error) {
	b := make([]byte, n*8)
	if _, err := io.ReadFull(l.replies, b); err != nil {
		return nil, err
	}
	return words(b), nil
}

// doList has the program execute a list, and returns the answer.
func (l *line) doList(list *list) (words, error) {
	list.addAnswer()
	if err := l.sendList(list); err != nil {
		return nil, err
	}
	return l.receiveAnswer(len(list.words))
}

// readStream has the program read from its descriptor fd. It returns what was there, or an *Error. At the end there is nothing,
// and the program closes fd.
func (l *line) readStream(fd int) ([]byte, error) {
	li := &list{}
	iov := li.reserveWords(3) // two struct iovec: the last word is the result of the read
	li.words[iov], li.words[iov+2] = wordsBase, readBase
	read := li.addCall(unix.SYS_READ, uint64(fd), readBase, readSize)
	both := li.addCall(unix.SYS_WRITEV, ReplyFD, wordAt(iov), 2)
	both.onPositive, both.onZero, both.onNegative = finish, finish, finish
	read.onZero = li.addCall(unix.SYS_CLOSE, uint64(fd))
	read.onNegative = li.addAnswer()
	li.words[iov+1] = uint64(len(li.words)) * 8
	if err := l.sendList(li); err != nil {
		return nil, err
	}
	answer, err := l.receiveAnswer(len(li.words))
	if err != nil {
		return nil, err
	}
	if err := answer.checkCall("read", read); err != nil {
		return nil, err
	}
	n := answer.getResult(read)
	if n > readSize {
		return nil, fmt.Errorf("the first process of the sandbox answers %d bytes", n)
	}
	b := make([]byte, n)
	_, err = io.ReadFull(l.replies, b)
	return b, err
}

// words are an answer.
type words []byte

func (w words) getWord(i int) uint64 { return binary.LittleEndian.Uint64(w[i*8:]) }

func (w words) getResult(s *step) int64 { return int64(w.getWord(s.word)) }

// checkCall returns an *Error if a call failed or was not executed. what says what it is for.
func (w words) checkCall(what string, s *step) error {
	switch n := w.getResult(s); {
	case n == notExecuted:
		return &Error{what, unix.ECANCELED}
	case n < 0:
		return &Error{what, unix.Errno(-n)}
	}
	return nil
}

// An Error says which call failed inside, and why.
type Error struct {
	What string // "" if it is clear from the error
	Err  unix.Errno
}

func (e *Error) Error() string {
	if e.What == "" {
		return e.Err.Error()
	}
	return e.What + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// modeOf returns the mode in a struct stat that begins at word i.
func (w words) modeOf(i int) uint32 {
	return binary.LittleEndian.Uint32(w[i*8+int(unsafe.Offsetof(unix.Stat_t{}.Mode)):])
}
