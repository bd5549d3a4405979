//go:build linux

package pid1

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// A list is a list of system calls for the program to execute.
type list struct {
	syslist.List
	answers []*syslist.Step // those that send the answer
}

// Where the parts of a list are in the program's memory.
const (
	wordsBase = workBase
	wordsSize = 256 << 10
	readBase  = wordsBase + wordsSize // what a program has written
	readSize  = 32 << 10
	stepsBase = readBase + readSize
	stepsSize = 512 << 10
	bytesBase = stepsBase + stepsSize
)

func newList() *list {
	l := &list{}
	l.Place = syslist.Place{Words: wordsBase, Steps: stepsBase, Bytes: bytesBase, End: workBase + workSize}
	return l
}

// wordAt returns the address of a word of the answer.
func wordAt(i int) uint64 { return wordsBase + uint64(i)*8 }

// addAnswer adds the call that sends the answer.
func (l *list) addAnswer() *syslist.Step {
	s := l.AddCall(unix.SYS_WRITE, ReplyFD, wordsBase, 0)
	l.answers = append(l.answers, s)
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

func (l *line) ownCall(i int) uint64 { return l.first + uint64(i*syslist.CallSize) }

// sendList has the program execute a list.
func (l *line) sendList(list *list) error {
	for _, s := range list.answers {
		s.Args[2] = uint64(len(list.Words)) * 8
	}
	parts, err := list.Encode(l.ownCall(callWait))
	if err != nil || len(list.Words)*8 > wordsSize {
		return &Error{What: "arguments", Err: unix.E2BIG}
	}
	for i, p := range parts {
		next := l.ownCall(callWait)
		if i == len(parts)-1 {
			next = stepsBase
		}
		if err := l.loadBytes(p.Address, p.Bytes, next); err != nil {
			return err
		}
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
func (l *line) receiveAnswer(n int) (syslist.Answer, error) {
	defer l.watchAnswer()()
	return l.awaitAnswer(n)
}

// awaitAnswer returns the answer of n words to a list that may take its time.
func (l *line) awaitAnswer(n int) (syslist.Answer, error) {
	b := make([]byte, n*8)
	if _, err := io.ReadFull(l.replies, b); err != nil {
		return nil, err
	}
	return syslist.Answer(b), nil
}

// doList has the program execute a list, and returns the answer.
func (l *line) doList(list *list) (syslist.Answer, error) {
	list.addAnswer()
	if err := l.sendList(list); err != nil {
		return nil, err
	}
	return l.receiveAnswer(len(list.Words))
}

// readStream has the program read from its descriptor fd. It returns what was there, or an *Error. At the end there is nothing,
// and the program closes fd.
func (l *line) readStream(fd int) ([]byte, error) {
	li := newList()
	iov := li.Reserve(3) // two struct iovec: the last word is the result of the read
	li.Words[iov], li.Words[iov+2] = wordsBase, readBase
	read := li.AddCall(unix.SYS_READ, uint64(fd), readBase, readSize)
	both := li.AddCall(unix.SYS_WRITEV, ReplyFD, wordAt(iov), 2)
	both.OnPositive, both.OnZero, both.OnNegative = syslist.Finish, syslist.Finish, syslist.Finish
	read.OnZero = li.AddCall(unix.SYS_CLOSE, uint64(fd))
	read.OnNegative = li.addAnswer()
	li.Words[iov+1] = uint64(len(li.Words)) * 8
	if err := l.sendList(li); err != nil {
		return nil, err
	}
	answer, err := l.receiveAnswer(len(li.Words))
	if err != nil {
		return nil, err
	}
	if err := answer.Check("read", read); err != nil {
		return nil, err
	}
	n := answer.GetResult(read)
	if n > readSize {
		return nil, fmt.Errorf("the first process of the sandbox answers %d bytes", n)
	}
	b := make([]byte, n)
	_, err = io.ReadFull(l.replies, b)
	return b, err
}

// An Error says which call failed inside, and why.
type Error = syslist.Error
