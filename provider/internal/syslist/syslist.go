//go:build linux

// Package syslist has lists of system calls, and a tiny interpreter that executes them. The first process of a sandbox is
// such an interpreter: it must work in images without any program, and every start waits for it. A process that was cloned
// without a copy of its memory executes a list, too, since no Go code can run in it.
package syslist

import (
	"bytes"
	"encoding/binary"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call is a system call in the memory of the interpreter, with pointers to the Call that follows it, by the sign of its
// result.
type Call struct {
	Nr       uint64
	Args     [3]uint64
	Positive uint64
	Zero     uint64
	Negative uint64
	Result   uint64    // where the result is stored
	More     [3]uint64 // more Args
}

// CallSize is the size of a Call in bytes.
const CallSize = 11 * 8

// SetArgs sets the arguments, of which there are at most six.
func (c *Call) SetArgs(args ...uint64) {
	copy(c.Args[:], args)
	if len(args) > len(c.Args) {
		copy(c.More[:], args[len(c.Args):])
	}
}

// A Place says where the parts of a list are in the memory of the interpreter, by their addresses.
type Place struct {
	Words uint64 // of the answer
	Steps uint64
	Bytes uint64 // what the calls read
	End   uint64
}

// A List is a list of system calls. Their results, and other words that they write, are the answer.
type List struct {
	Place Place
	Steps []*Step
	Words []uint64 // of the answer, with their values before
	data  []byte
}

// A Step is a call of a list. The next one follows it, unless another is given for the sign of its result.
type Step struct {
	Args       []uint64
	OnPositive *Step
	OnZero     *Step
	OnNegative *Step

	nr   uint64
	word int // of the answer: where the result is stored
}

// Finish, in place of a Step, ends the list.
var Finish = &Step{}

// notExecuted is the result of a call that was not executed.
const notExecuted = math.MinInt64

// AddCall adds a system call.
func (l *List) AddCall(nr uintptr, args ...uint64) *Step {
	s := l.PrepareCall(nr, args...)
	l.Steps = append(l.Steps, s)
	return s
}

// PrepareCall returns a system call to append to Steps later.
func (l *List) PrepareCall(nr uintptr, args ...uint64) *Step {
	s := &Step{nr: uint64(nr), Args: args, word: l.Reserve(1)}
	var none int64 = notExecuted
	l.Words[s.word] = uint64(none)
	return s
}

// Reserve adds n words to the answer and returns the index of the first.
func (l *List) Reserve(n int) int {
	l.Words = append(l.Words, make([]uint64, n)...)
	return len(l.Words) - n
}

// WordAt returns the address of a word of the answer.
func (l *List) WordAt(i int) uint64 { return l.Place.Words + uint64(i)*8 }

// AddBytes returns the address of a copy of b.
func (l *List) AddBytes(b []byte) uint64 {
	for len(l.data)%8 != 0 {
		l.data = append(l.data, 0)
	}
	l.data = append(l.data, b...)
	return l.Place.Bytes + uint64(len(l.data)-len(b))
}

// AddText returns the address of a copy of s, with a zero byte at its end.
func (l *List) AddText(s string) uint64 { return l.AddBytes(append([]byte(s), 0)) }

// AddTexts returns the address of an array of pointers to copies of the strings, with nil at its end.
func (l *List) AddTexts(list []string) uint64 {
	var pointers []byte
	for _, s := range list {
		pointers = binary.LittleEndian.AppendUint64(pointers, l.AddText(s))
	}
	return l.AddBytes(append(pointers, make([]byte, 8)...))
}

// A Part is bytes for an address of the interpreter.
type Part struct {
	Address uint64
	Bytes   []byte
}

// Encode returns what has to be in the memory of the interpreter to execute the list from Place.Steps on, steps last.
// After the list it makes the call at next. Encode returns E2BIG if the list does not fit.
func (l *List) Encode(next uint64) ([]Part, error) {
	p := l.Place
	if uint64(len(l.Words))*8 > p.Steps-p.Words || uint64(len(l.Steps))*CallSize > p.Bytes-p.Steps || uint64(len(l.data)) > p.End-p.Bytes {
		return nil, unix.E2BIG
	}
	at := map[*Step]uint64{Finish: next}
	for i, s := range l.Steps {
		at[s] = p.Steps + uint64(i*CallSize)
	}
	var calls bytes.Buffer
	for i, s := range l.Steps {
		then := p.Steps + uint64((i+1)*CallSize)
		if i == len(l.Steps)-1 {
			then = next
		}
		c := Call{Nr: s.nr, Positive: then, Zero: then, Negative: then, Result: l.WordAt(s.word)}
		c.SetArgs(s.Args...)
		for _, follow := range []struct {
			step *Step
			to   *uint64
		}{{s.OnPositive, &c.Positive}, {s.OnZero, &c.Zero}, {s.OnNegative, &c.Negative}} {
			if follow.step != nil {
				*follow.to = at[follow.step]
			}
		}
		_ = binary.Write(&calls, binary.LittleEndian, c) // a bytes.Buffer never fails
	}
	var words []byte
	for _, w := range l.Words {
		words = binary.LittleEndian.AppendUint64(words, w)
	}
	return []Part{{p.Words, words}, {p.Bytes, l.data}, {p.Steps, calls.Bytes()}}, nil
}

// An Answer is the words of a list after its execution.
type Answer []byte

// GetWord returns a word.
func (a Answer) GetWord(i int) uint64 { return binary.LittleEndian.Uint64(a[i*8:]) }

// GetResult returns the result of a call.
func (a Answer) GetResult(s *Step) int64 { return int64(a.GetWord(s.word)) }

// WasExecuted reports whether a call returned.
func (a Answer) WasExecuted(s *Step) bool { return a.GetResult(s) != notExecuted }

// Check returns an *Error if a call failed or was not executed. what says what it is for.
func (a Answer) Check(what string, s *Step) error {
	switch n := a.GetResult(s); {
	case n == notExecuted:
		return &Error{what, unix.ECANCELED}
	case n < 0:
		return &Error{what, unix.Errno(-n)}
	}
	return nil
}

// ModeOf returns the mode in a struct stat that begins at word i.
func (a Answer) ModeOf(i int) uint32 {
	return binary.LittleEndian.Uint32(a[i*8+int(unsafe.Offsetof(unix.Stat_t{}.Mode)):])
}

// An Error says which call failed, and why.
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
