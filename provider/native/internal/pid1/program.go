//go:build linux

// Package pid1 has the first process of a sandbox, and its client in the sandbox's keeper.
//
// The program is an interpreter of lists of system calls, see package syslist. It reaps all processes inside that have lost
// their parents, reports the end of each of its children to the client, and executes the lists that the client writes to
// memory that both have mapped. All that is more than that is in the client, an [Init]: its lists start programs, whose
// open files come along over the socket between the two. So a program inside writes directly to the client's pipe.
package pid1

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/syslist"
)

// The descriptors of the program when it starts: its end of the socket, and the memory that it shares with the client. All
// others must be closed on execution, except the three standard streams.
const (
	SocketFD = 3
	MemoryFD = 4
)

// The descriptors of the program later.
const (
	signalFD = MemoryFD
	firstFD  = signalFD + 1 // of those that come with a list
	maxFiles = 4
)

// Where the parts of the shared memory are in the program.
const (
	workBase    = 0x600000
	messageBase = workBase // the struct msghdr with which the program receives
	messageSize = 4096
	wordsBase   = messageBase + messageSize
	wordsSize   = 60 << 10
	stepsBase   = wordsBase + wordsSize
	stepsSize   = 192 << 10
	bytesBase   = stepsBase + stepsSize
	workSize    = 4 << 20
)

// MemorySize is the size of the shared memory in bytes.
const MemorySize = workSize

// Where the parts of the message are, from messageBase on.
const (
	iovOffset     = 64
	controlOffset = 128
	byteOffset    = 512
)

// An event reports that a child has ended: a PID and a wait status, of 64 bits each. An answer, of 64 bits, says that a list
// has been executed.
const (
	eventSize  = 16
	answerSize = 8
)

// The calls of the program itself, in their order.
const (
	callMap = iota
	callClose
	callHide
	callInherit
	callBlock
	callSignals
	callPoll  // without an end
	callDrain // the signals, before the look for the children that sent them
	callReap  // one child
	callReport
	callWait    // when a report cannot be sent for lack of memory
	callReceive // a list, which the program then executes
	callExit
	callRest // a program without the memory has nothing to do until its socket is at its end
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
	event, polled, signals, children, pause := scratch+8, scratch+24, scratch+40, scratch+48, scratch+56
	const all, mapped, drained = ^uint64(0), unix.PROT_READ | unix.PROT_WRITE, messageBase + messageSize - 256
	calls := make([]syslist.Call, ownCalls)
	set := func(i int, nr uintptr, args ...uint64) *syslist.Call {
		c := &calls[i]
		c.Nr, c.Result = uint64(nr), scratch
		c.SetArgs(args...)
		c.Positive, c.Zero, c.Negative = at(i+1), at(i+1), at(i+1)
		return c
	}
	set(callMap, unix.SYS_MMAP, workBase, workSize, mapped, unix.MAP_SHARED|unix.MAP_FIXED, MemoryFD, 0).Negative = at(callRest)
	set(callClose, unix.SYS_CLOSE, MemoryFD)
	set(callHide, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0)
	set(callInherit, unix.SYS_FCNTL, SocketFD, unix.F_SETFD, unix.FD_CLOEXEC)
	set(callBlock, unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, signals, 0, 8)
	set(callSignals, unix.SYS_SIGNALFD4, all, children, 8, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
	set(callPoll, unix.SYS_PPOLL, polled, 2, 0, 0, 8)
	set(callDrain, unix.SYS_READ, signalFD, drained, 128)
	reap := set(callReap, unix.SYS_WAIT4, all, event+8, unix.WNOHANG, 0)
	reap.Result, reap.Zero, reap.Negative = event, at(callReceive), at(callReceive)
	report := set(callReport, unix.SYS_SENDTO, SocketFD, event, eventSize, unix.MSG_NOSIGNAL, 0, 0)
	report.Positive, report.Zero, report.Negative = at(callReap), at(callReap), at(callWait)
	wait := set(callWait, unix.SYS_PPOLL, 0, 0, pause, 0, 8)
	wait.Positive, wait.Zero, wait.Negative = at(callReport), at(callReport), at(callReport)
	receive := set(callReceive, unix.SYS_RECVMSG, SocketFD, messageBase, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	receive.Positive, receive.Zero, receive.Negative = stepsBase, at(callExit), at(callPoll)
	set(callExit, unix.SYS_EXIT_GROUP, 0)
	rest := set(callRest, unix.SYS_PPOLL, polled, 1, 0, 0, 8)
	rest.Positive, rest.Zero, rest.Negative = at(callExit), at(callExit), at(callExit)

	var data bytes.Buffer
	put := func(v any) { _ = binary.Write(&data, binary.LittleEndian, v) } // a bytes.Buffer never fails
	put(calls)
	put(uint64(0))   // scratch
	put([2]uint64{}) // event
	put(pollIn(SocketFD))
	put(pollIn(signalFD))
	put(all) // signals
	put(uint64(1) << (uint(unix.SIGCHLD) - 1))
	put([2]uint64{0, 10_000_000}) // a struct timespec
	return assemble(data.Bytes(), uint64(data.Len())), nil
}

// pollIn returns a struct pollfd that waits for input.
func pollIn(fd uint64) uint64 { return fd | unix.POLLIN<<32 }
