package guest

import (
	"debug/elf"
	"strings"
	"testing"
)

func TestFits(t *testing.T) {
	program := make([]byte, 64) // the header of one
	copy(program, "\x7fELF\x02\x01\x01")
	program[16], program[18], program[20], program[52] = byte(elf.ET_EXEC), byte(elf.EM_AARCH64), 1, 64
	for _, tt := range []struct {
		program    string
		arch, says string
	}{
		{string(program), "arm64", ""},
		{string(program), "amd64", "is for EM_AARCH64, but the machine is amd64: build it with GOARCH=amd64 make guest"},
		{string(program), "pdp11", "is pdp11"},
		{"#!/bin/sh\n", "amd64", "not a Linux program"},
	} {
		err := Fits([]byte(tt.program), tt.arch)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%q on %s: %v, want %q", tt.program[:4], tt.arch, err, tt.says)
		}
	}
}
