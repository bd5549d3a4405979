//go:build linux

// Package pid1 has the first process of a sandbox, and its client on the host.
//
// The program is an interpreter of lists of system calls. It must work in images that have no program at all, and every
// start waits for it, so it is a few dozen instructions, assembled here. At first it waits for a list in a pipe. Without one
// it does what any first process must: nothing kills it except SIGKILL, and the kernel reaps orphans for it.
//
// All that is more than that is in the client, an [Init]: it has the program start others, with pipes or a terminal of the
// sandbox's own kernel. Unlike commands that the sentry executes itself, these have nothing of the host open, so they
// survive a checkpoint and a restore.
package pid1

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// The descriptors of the program: it reads lists from RequestFD, and writes results to ReplyFD.
const (
	RequestFD = 3
	ReplyFD   = 4
)

const (
	workBase = 0x600000 // where the client places lists and their data
	workSize = 4 << 20
)

// loadArgsOffset is the offset of Args[1] in a Call. The program reads the first message of a list directly into Args[1], Args[2]
// and Positive of its own call "load".
const loadArgsOffset = 2 * 8

// The calls of the program itself, in their order.
const (
	callHide = iota
	callReap
	callBlock
	callWait // for the first words of a message
	callLoad // the rest of it to where it belongs
	callRest
	ownCalls
)

// Program returns the executable for the given GOARCH.
func Program(arch string) ([]byte, error) {
	first, assemble, err := syslist.LayOut(arch)
	if err != nil {
		return nil, err
	}
	at := func(i int) uint64 { return first + uint64(i*syslist.CallSize) }
	scratch := at(ownCalls)
	ignore, all := scratch+8, scratch+8+32 // struct sigaction, sigset_t
	calls := []syslist.Call{
		callHide:  {Nr: unix.SYS_PRCTL, Args: [3]uint64{unix.PR_SET_DUMPABLE, 0, 0}},
		callReap:  {Nr: unix.SYS_RT_SIGACTION, Args: [3]uint64{uint64(unix.SIGCHLD), ignore, 0}, More: [3]uint64{8}},
		callBlock: {Nr: unix.SYS_RT_SIGPROCMASK, Args: [3]uint64{unix.SIG_BLOCK, all, 0}, More: [3]uint64{8}},
		callWait:  {Nr: unix.SYS_READ, Args: [3]uint64{RequestFD, at(callLoad) + loadArgsOffset, 24}},
		callLoad:  {Nr: unix.SYS_READ, Args: [3]uint64{RequestFD}},
		callRest:  {Nr: unix.SYS_PPOLL},
	}
	for i := range calls {
		c := &calls[i]
		c.Result, c.Positive, c.Zero, c.Negative = scratch, at(i+1), at(i+1), at(i+1)
		if i >= callWait { // without a client there is nothing more to do
			c.Zero, c.Negative = at(callRest), at(callRest)
		}
	}
	calls[callRest].Positive = at(callRest)

	var data bytes.Buffer
	put := func(v any) { _ = binary.Write(&data, binary.LittleEndian, v) } // a bytes.Buffer never fails
	put(calls)
	put(uint64(0))
	put([4]uint64{1}) // SIG_IGN, no flags, empty mask
	put(^uint64(0))   // all signals
	return assemble(data.Bytes(), workBase+workSize-first), nil
}
