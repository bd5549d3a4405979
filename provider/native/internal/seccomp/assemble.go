//go:build linux && (amd64 || arm64)

package seccomp

import (
	"math"

	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data, which the filter reads. Both architectures are little-endian: the first
// half of an argument is its low one.
const (
	numberOffset   = 0
	auditOffset    = 4
	argumentOffset = 16
	argumentSize   = 8
)

// assembleFilter returns the filter for programs of the convention audit: a binary search for the span of the call,
// with the instructions of its rule at each end. Programs of other conventions get ENOSYS for each call.
func assembleFilter(audit uint32, spans []span) []unix.SockFilter {
	head := []unix.SockFilter{
		loadWord(auditOffset),
		jumpIf(unix.BPF_JEQ, audit, 1, 0),
		returnAnswer(absent),
		loadWord(numberOffset),
	}
	return append(head, assembleSearch(spans)...)
}

// assembleSearch returns instructions that find the span of the loaded number and end with its answer.
func assembleSearch(spans []span) []unix.SockFilter {
	if len(spans) == 1 {
		return assembleRule(spans[0].rule)
	}
	middle := len(spans) / 2
	low, high := assembleSearch(spans[:middle]), assembleSearch(spans[middle:])
	var out []unix.SockFilter
	if first := spans[middle].first; len(low) <= math.MaxUint8 {
		out = append(out, jumpIf(unix.BPF_JGE, first, len(low), 0))
	} else { // only a jump without a condition goes that far
		out = append(out, jumpIf(unix.BPF_JGE, first, 0, 1), jumpOver(len(low)))
	}
	return append(append(out, low...), high...)
}

// assembleRule returns instructions that end with the answer of a rule.
func assembleRule(r *rule) []unix.SockFilter {
	if len(r.values) == 0 {
		return []unix.SockFilter{returnAnswer(r.other)}
	}
	out := []unix.SockFilter{loadWord(argumentOffset + argumentSize*r.argument)}
	for i, value := range r.values {
		out = append(out, jumpIf(r.compare, value, len(r.values)-i, 0)) // over the other comparisons and the return
	}
	return append(out, returnAnswer(r.other), returnAnswer(r.match))
}

// loadWord loads 32 bits of the data.
func loadWord(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jumpIf compares the loaded word with value and skips yes or no instructions, up to 255.
func jumpIf(compare uint16, value uint32, yes, no int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: value, Jt: uint8(yes), Jf: uint8(no)}
}

// jumpOver skips n instructions.
func jumpOver(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)}
}

// returnAnswer ends the filter.
func returnAnswer(answer uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: answer}
}
