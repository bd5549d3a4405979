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
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/elf"
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

// A call is a system call of a list, with pointers to the call that follows it, by the sign of its result. The program
// reads the first message of a list directly into args[1], args[2] and positive of its own call "load".
type call struct {
	nr       uint64
	args     [3]uint64
	positive uint64
	zero     uint64
	negative uint64
	result   uint64 // where the result is stored
	more     [3]uint64
}

const (
	callSize       = 11 * 8
	loadArgsOffset = 2 * 8 // of args[1]
)

// interpreters have, by GOARCH, the machine of an ELF file and the code that executes the calls from start on.
var interpreters = map[string]struct {
	machine uint16
	text    func(start uint32) []byte
}{
	"amd64": {62, func(start uint32) []byte {
		return slices.Concat([]byte{0x41, 0xbc}, binary.LittleEndian.AppendUint32(nil, start), []byte{ // mov r12d, start
			0x49, 0x8b, 0x04, 0x24, //       next: mov  rax, [r12]    nr
			0x49, 0x8b, 0x7c, 0x24, 0x08, //       mov  rdi, [r12+8]  args
			0x49, 0x8b, 0x74, 0x24, 0x10, //       mov  rsi, [r12+16]
			0x49, 0x8b, 0x54, 0x24, 0x18, //       mov  rdx, [r12+24]
			0x4d, 0x8b, 0x54, 0x24, 0x40, //       mov  r10, [r12+64] more
			0x4d, 0x8b, 0x44, 0x24, 0x48, //       mov  r8,  [r12+72]
			0x4d, 0x8b, 0x4c, 0x24, 0x50, //       mov  r9,  [r12+80]
			0x0f, 0x05, //                         syscall
			0x49, 0x8b, 0x5c, 0x24, 0x38, //       mov  rbx, [r12+56] result
			0x48, 0x89, 0x03, //                   mov  [rbx], rax
			0x48, 0x85, 0xc0, //                   test rax, rax
			0x78, 0x10, //                         js   negative
			0x74, 0x07, //                         jz   zero
			0x4d, 0x8b, 0x64, 0x24, 0x20, //       mov  r12, [r12+32]
			0xeb, 0xc6, //                         jmp  next
			0x4d, 0x8b, 0x64, 0x24, 0x28, // zero: mov  r12, [r12+40]
			0xeb, 0xbf, //                         jmp  next
			0x4d, 0x8b, 0x64, 0x24, 0x30, // negative: mov r12, [r12+48]
			0xeb, 0xb8, //                         jmp  next
		})
	}},
	"arm64": {183, func(start uint32) []byte {
		var text []byte
		for _, word := range []uint32{
			0xd2800013 | start&0xffff<<5, //       movz x19, start
			0xf2a00013 | start>>16<<5,    //       movk x19, start>>16, lsl 16
			0xf9400268,                   // next: ldr  x8, [x19]         nr
			0xa9408660,                   //       ldp  x0, x1, [x19, 8]  args
			0xf9400e62,                   //       ldr  x2, [x19, 24]
			0xa9441263,                   //       ldp  x3, x4, [x19, 64] more
			0xf9402a65,                   //       ldr  x5, [x19, 80]
			0xd4000001,                   //       svc  0
			0xf9401e69,                   //       ldr  x9, [x19, 56]     result
			0xf9000120,                   //       str  x0, [x9]
			0xf100001f,                   //       cmp  x0, 0
			0x540000c4,                   //       b.mi negative
			0x54000060,                   //       b.eq zero
			0xf9401273,                   //       ldr  x19, [x19, 32]
			0x17fffff4,                   //       b    next
			0xf9401673,                   // zero: ldr  x19, [x19, 40]
			0x17fffff2,                   //       b    next
			0xf9401a73,                   // negative: ldr x19, [x19, 48]
			0x17fffff0,                   //       b    next
		} {
			text = binary.LittleEndian.AppendUint32(text, word)
		}
		return text
	}},
}

// layOutProgram returns the text of the program and the address of its first call.
func layOutProgram(arch string) (machine uint16, text []byte, first uint64, err error) {
	in, ok := interpreters[arch]
	if !ok {
		return 0, nil, 0, fmt.Errorf("gVisor does not run on %s", arch)
	}
	headers := elf.HeadersSize(true)
	length := (headers + uint64(len(in.text(0))) + 7) &^ 7
	first = elf.DataBase + length
	text = in.text(uint32(first))
	return in.machine, append(text, make([]byte, length-headers-uint64(len(text)))...), first, nil
}

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
	machine, text, first, err := layOutProgram(arch)
	if err != nil {
		return nil, err
	}
	at := func(i int) uint64 { return first + uint64(i*callSize) }
	scratch := at(ownCalls)
	ignore, all := scratch+8, scratch+8+32 // struct sigaction, sigset_t
	calls := []call{
		callHide:  {nr: unix.SYS_PRCTL, args: [3]uint64{unix.PR_SET_DUMPABLE, 0, 0}},
		callReap:  {nr: unix.SYS_RT_SIGACTION, args: [3]uint64{uint64(unix.SIGCHLD), ignore, 0}, more: [3]uint64{8}},
		callBlock: {nr: unix.SYS_RT_SIGPROCMASK, args: [3]uint64{unix.SIG_BLOCK, all, 0}, more: [3]uint64{8}},
		callWait:  {nr: unix.SYS_READ, args: [3]uint64{RequestFD, at(callLoad) + loadArgsOffset, 24}},
		callLoad:  {nr: unix.SYS_READ, args: [3]uint64{RequestFD}},
		callRest:  {nr: unix.SYS_PPOLL},
	}
	for i := range calls {
		c := &calls[i]
		c.result, c.positive, c.zero, c.negative = scratch, at(i+1), at(i+1), at(i+1)
		if i >= callWait { // without a client there is nothing more to do
			c.zero, c.negative = at(callRest), at(callRest)
		}
	}
	calls[callRest].positive = at(callRest)

	var data bytes.Buffer
	put := func(v any) { _ = binary.Write(&data, binary.LittleEndian, v) } // a bytes.Buffer never fails
	put(calls)
	put(uint64(0))
	put([4]uint64{1}) // SIG_IGN, no flags, empty mask
	put(^uint64(0))   // all signals
	program := elf.Program{Machine: machine, Text: text, Data: data.Bytes(), Memory: workBase + workSize - first}
	return program.Assemble(), nil
}
