//go:build linux

package syslist

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/seed46cd37a8/atoll/provider/internal/elf"
)

// LayOut returns the address of the first Call of an interpreter for the given GOARCH, and a function that assembles its
// executable. That gets what is at the address, and the number of bytes of memory from there on.
func LayOut(arch string) (first uint64, assemble func(data []byte, memory uint64) []byte, err error) {
	in, ok := interpreters[arch]
	if !ok {
		return 0, nil, fmt.Errorf("no first process of a sandbox for the architecture %s", arch)
	}
	headers := elf.HeadersSize(true)
	length := (headers + uint64(len(in.text(0))) + 7) &^ 7
	first = elf.DataBase + length
	text := in.text(uint32(first))
	text = append(text, make([]byte, length-headers-uint64(len(text)))...)
	return first, func(data []byte, memory uint64) []byte {
		p := elf.Program{Machine: in.machine, Text: text, Data: data, Memory: memory}
		return p.Assemble()
	}, nil
}

// interpreters have, by GOARCH, the machine of an ELF file and the code that executes the Calls from start on.
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
