// Package elf assembles executables from machine code, for programs that must work in images without any program.
package elf

import (
	"bytes"
	"encoding/binary"
)

// The addresses at which the segments of a Program begin, less their offsets in its file.
const (
	TextBase = 0x400000
	DataBase = 0x500000
)

// A Program is a static executable of 64 bits, little endian.
type Program struct {
	Machine uint16
	Text    []byte // can be read and executed, and begins with the first instruction
	Data    []byte // can be read and written; empty for none
	Memory  uint64 // bytes of memory from the beginning of Data on
}

// HeadersSize returns the size in bytes of the headers of a program, which Text and then Data follow in its file.
func HeadersSize(data bool) uint64 {
	if data {
		return 64 + 2*56
	}
	return 64 + 56
}

// Assemble returns the file of the program.
func (p *Program) Assemble() []byte {
	headers, segments := HeadersSize(len(p.Data) > 0), uint16(1)
	if len(p.Data) > 0 {
		segments = 2
	}
	text, data := headers+uint64(len(p.Text)), uint64(len(p.Data))
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a bytes.Buffer never fails
	b.WriteString("\x7fELF")
	b.Write([]byte{2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // 64 bit, little endian, version 1
	put([]uint16{2, p.Machine})                         // executable
	put(uint32(1))
	put([]uint64{TextBase + headers, 64, 0}) // entry, program headers, no sections
	put(uint32(0))
	put([]uint16{64, 56, segments, 64, 0, 0})
	put([]uint32{1, 5}) // PT_LOAD, read and execute
	put([]uint64{0, TextBase, TextBase, text, text, 0x1000})
	if segments > 1 {
		put([]uint32{1, 6}) // PT_LOAD, read and write
		put([]uint64{text, DataBase + text, DataBase + text, data, p.Memory, 0x1000})
	}
	b.Write(p.Text)
	b.Write(p.Data)
	return b.Bytes()
}
