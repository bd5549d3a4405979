// Package interpreter finds out why the kernel reports "no such file or directory" for a program that exists: the
// interpreter that its first line names, or the loader of a dynamically linked program, does not.
package interpreter

import (
	"bytes"
	"debug/elf"
	"fmt"
	"strings"
)

// headSize is the length of the part of a program that is read, in bytes. The linkers put the name of the loader
// there.
const headSize = 16 << 10

// maxDepth is the number of interpreters that the kernel follows: one may be a script, too.
const maxDepth = 5

// Check returns the error for a program whose interpreter is missing, or nil if it is not, or read cannot read the
// program. read returns the first bytes of the file at an absolute path, at most limit.
func Check(program string, read func(path string, limit int) ([]byte, error)) error {
	at := program
	for range maxDepth {
		head, err := read(at, headSize)
		if err != nil && at == program {
			return nil
		}
		if err != nil {
			return missingError(program, at)
		}
		if at = interpreterOf(head); at == "" {
			return nil
		}
	}
	return nil
}

func missingError(program, missing string) error {
	why := ""
	if strings.HasSuffix(missing, "\r") {
		why = ": the file has the line ends of Windows"
	}
	return fmt.Errorf("%q: its interpreter %q does not exist%s", program, missing, why)
}

// interpreterOf returns the interpreter of the program that begins with head, or "" if it needs none.
func interpreterOf(head []byte) string {
	if line, isScript := bytes.CutPrefix(head, []byte("#!")); isScript {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		line = bytes.TrimLeft(line, " \t")
		if i := bytes.IndexAny(line, " \t\x00"); i >= 0 {
			line = line[:i]
		}
		return string(line)
	}
	f, err := elf.NewFile(bytes.NewReader(withoutSections(head)))
	if err != nil {
		return ""
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > headSize {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err == nil {
			return strings.TrimRight(string(name), "\x00")
		}
	}
	return ""
}

// withoutSections returns a copy of the head of an ELF file whose header has no section headers: they are at the end
// of the file.
func withoutSections(head []byte) []byte {
	const class = 4 // the index of the byte that tells 32 from 64 bits
	head = bytes.Clone(head)
	switch {
	case len(head) >= 64 && elf.Class(head[class]) == elf.ELFCLASS64:
		clear(head[0x28:0x30]) // e_shoff
		clear(head[0x3c:0x40]) // e_shnum, e_shstrndx
	case len(head) >= 52 && elf.Class(head[class]) == elf.ELFCLASS32:
		clear(head[0x20:0x24])
		clear(head[0x30:0x34])
	}
	return head
}
