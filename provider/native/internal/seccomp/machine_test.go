//go:build linux && (amd64 || arm64)

package seccomp

import (
	"encoding/binary"
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

// packCall returns the kernel's struct seccomp_data of a system call.
func packCall(audit, number uint32, args [6]uint64) []byte {
	data := binary.NativeEndian.AppendUint32(nil, number)
	data = binary.NativeEndian.AppendUint32(data, audit)
	data = binary.NativeEndian.AppendUint64(data, 0) // the instruction pointer
	for _, arg := range args {
		data = binary.NativeEndian.AppendUint64(data, arg)
	}
	return data
}

// A run is the result of a filter.
type run struct {
	answer   uint32
	steps    int  // executed instructions
	argument bool // the filter read an argument
}

// runFilter runs a filter as the kernel does, and fails the test for an instruction that the kernel would not take or
// that no filter of this package should have.
func runFilter(t testing.TB, filter []unix.SockFilter, data []byte) run {
	t.Helper()
	var r run
	var word uint32
	for at := 0; ; at++ {
		if at < 0 || at >= len(filter) {
			t.Fatalf("the filter jumps to instruction %d of %d", at, len(filter))
		}
		in := filter[at]
		r.steps++
		holds := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if in.K%4 != 0 || in.K > uint32(len(data)-4) {
				t.Fatalf("instruction %d loads from %d", at, in.K)
			}
			word = binary.NativeEndian.Uint32(data[in.K:])
			r.argument = r.argument || in.K >= argumentOffset
			continue
		case unix.BPF_RET | unix.BPF_K:
			r.answer = in.K
			return r
		case unix.BPF_JMP | unix.BPF_JA:
			at += int(in.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = word == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			holds = word >= in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			holds = word&in.K != 0
		default:
			t.Fatalf("instruction %d has code %#x", at, in.Code)
		}
		if holds {
			at += int(in.Jt)
		} else {
			at += int(in.Jf)
		}
	}
}

// A search whose halves are longer than a jump with a condition can skip still finds each span.
func TestFarJumps(t *testing.T) {
	spans := []span{}
	for n := range uint32(3000) {
		spans = append(spans, span{n * 3, []*rule{allow, refuse, limitFamilies, hide}[n%4]})
	}
	filter := assembleFilter(unix.AUDIT_ARCH_AARCH64, spans)
	if far := len(filter) / 2; far <= math.MaxUint8 {
		t.Fatalf("the filter has only %d instructions", len(filter))
	}
	for n, s := range spans {
		for number := s.first; number < s.first+3; number++ {
			got := runFilter(t, filter, packCall(unix.AUDIT_ARCH_AARCH64, number, [6]uint64{unix.AF_INET6}))
			if want := []uint32{unix.SECCOMP_RET_ALLOW, refused, unix.SECCOMP_RET_ALLOW, absent}[n%4]; got.answer != want {
				t.Fatalf("call %d: answer %#x, want %#x", number, got.answer, want)
			}
		}
	}
}
