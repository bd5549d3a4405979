//go:build linux

package sentry

import (
	"bytes"
	"encoding/binary"
)

// assembleELF returns a static executable that begins with text. The data follow the text.
func assembleELF(machine uint16, text, data []byte) []byte {
	const (
		base    = 0x400000
		headers = 64 + 56 // ELF header and one program header
	)
	size := uint64(headers + len(text) + len(data))
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a bytes.Buffer never fails
	b.WriteString("\x7fELF")
	b.Write([]byte{2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // 64 bit, little endian, version 1
	put([]uint16{2, machine})                           // executable
	put(uint32(1))
	put([]uint64{base + headers, 64, 0}) // entry, program headers, no sections
	put(uint32(0))
	put([]uint16{64, 56, 1, 64, 0, 0})
	put([]uint32{1, 5})                              // PT_LOAD, read and execute
	put([]uint64{0, base, base, size, size, 0x1000}) // the whole file
	b.Write(text)
	b.Write(data)
	return b.Bytes()
}
