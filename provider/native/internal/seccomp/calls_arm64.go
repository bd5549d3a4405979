//go:build linux

package seccomp

import "golang.org/x/sys/unix"

// The convention of 64-bit programs on arm64.
const (
	hostAudit  = unix.AUDIT_ARCH_AARCH64
	newestCall = unix.SYS_RSEQ_SLICE_YIELD
)

// unassigned lists the ranges of numbers below newestCall that have no calls: 16 of them are for calls of one
// architecture, of which arm64 has none.
var unassigned = []numbers{
	{unix.SYS_ARCH_SPECIFIC_SYSCALL, unix.SYS_WAIT4 - 1},
	{unix.SYS_KEXEC_FILE_LOAD + 1, unix.SYS_PIDFD_SEND_SIGNAL - 1},
}

// ownCalls lists the calls that amd64 does not have: none.
var ownCalls map[string][]call
