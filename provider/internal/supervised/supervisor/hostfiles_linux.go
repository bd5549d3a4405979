package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// protectHostFiles makes the kernel refuse, with EPERM, to set the set-user-ID and set-group-ID bits
// and to make devices, in this process and in all that it starts from now on. Call it before the
// engine starts if the sandbox can write to a directory of the host that other users may enter: with
// such a file they would get the rights of its owner: of root, if Atoll runs as root.
// openat2 creates files, too, with a mode that a filter cannot see. So the filter hides it unless openat2 is set: programs inside
// and the daemons of virtual machines do without. gVisor opens files with it, and needs it.
func protectHostFiles(openat2 bool) error {
	program, err := HostFilesFilter(openat2)
	if err != nil {
		return err
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// TSYNC: the engine's processes may be started by any thread.
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	runtime.KeepAlive(program)
	switch {
	case errno != 0:
		return fmt.Errorf("protect files of the host: %w", os.NewSyscallError("seccomp", errno))
	case thread != 0:
		return fmt.Errorf("protect files of the host: thread %d has a filter of its own", thread)
	}
	return nil
}

// HostFilesFilter returns the filter of protectHostFiles, for an engine that lays it on what runs inside only.
func HostFilesFilter(openat2 bool) ([]unix.SockFilter, error) {
	program := hostFilesProgram(runtime.GOARCH, openat2)
	if program == nil {
		return nil, errors.New("protect files of the host: no seccomp filter for the architecture " + runtime.GOARCH)
	}
	return program, nil
}

// A modeCall is a system call that can set the mode of a file.
type modeCall struct {
	number uint32
	mode   uint32 // index of the argument
	flags  int    // index of the argument with the flags of open, without which the mode counts for nothing; or noFlags
	denied uint32 // bits of the mode
}

const (
	noFlags    = -1
	setIDBits  = unix.S_ISUID | unix.S_ISGID
	deviceBits = unix.S_IFCHR & unix.S_IFBLK // no other type that can be made by mknod has it
)

// hostFilesCalls lists the calls of each architecture. No filter sees the arguments of io_uring: no engine makes
// files with it. Extended attributes with capabilities are refused by the engines.
var hostFilesCalls = map[string][]modeCall{
	"amd64": {
		{90, 1, noFlags, setIDBits},               // chmod
		{91, 1, noFlags, setIDBits},               // fchmod
		{268, 2, noFlags, setIDBits},              // fchmodat
		{452, 2, noFlags, setIDBits},              // fchmodat2
		{133, 1, noFlags, setIDBits | deviceBits}, // mknod
		{259, 2, noFlags, setIDBits | deviceBits}, // mknodat
		{85, 1, noFlags, setIDBits},               // creat
		{2, 2, 1, setIDBits},                      // open
		{257, 3, 2, setIDBits},                    // openat
	},
	"arm64": {
		{52, 1, noFlags, setIDBits},              // fchmod
		{53, 2, noFlags, setIDBits},              // fchmodat
		{452, 2, noFlags, setIDBits},             // fchmodat2
		{33, 2, noFlags, setIDBits | deviceBits}, // mknodat
		{56, 3, 2, setIDBits},                    // openat
	},
}

// openat2Call is the number of openat2 on every architecture.
const openat2Call = 437

var auditArchs = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// hostFilesProgram returns the filter for an architecture, all of which are little-endian, or nil if there is none.
// Each jump skips the following instructions, so that it reads from top to bottom.
func hostFilesProgram(goarch string, openat2 bool) []unix.SockFilter {
	const number, arch, arguments = 0, 4, 16   // offsets in the kernel's struct seccomp_data
	const x32 = 0x40000000                     // in the numbers of amd64 kernels' third convention
	const creating = unix.O_CREAT | 0o20000000 // or __O_TMPFILE
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// unless skips n instructions if the loaded value is not k, less than k, or has no bit of k.
	unless := func(compare uint16, k uint32, n int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: uint8(n)}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	allow := answer(unix.SECCOMP_RET_ALLOW)
	denied := answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	absent := answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))

	calls := hostFilesCalls[goarch]
	if calls == nil {
		return nil
	}
	judged := []unix.SockFilter{load(number)}
	if goarch == "amd64" {
		judged = append(judged, unless(unix.BPF_JGE, x32, 1), absent)
	}
	if !openat2 {
		judged = append(judged, unless(unix.BPF_JEQ, openat2Call, 1), absent)
	}
	for _, c := range calls {
		var check []unix.SockFilter
		if c.flags != noFlags {
			check = append(check, load(arguments+8*uint32(c.flags)), unless(unix.BPF_JSET, creating, 3))
		}
		check = append(check, load(arguments+8*c.mode), unless(unix.BPF_JSET, c.denied, 1), denied, allow)
		judged = append(append(judged, unless(unix.BPF_JEQ, c.number, len(check))), check...)
	}
	judged = append(judged, allow)
	out := append([]unix.SockFilter{load(arch), unless(unix.BPF_JEQ, auditArchs[goarch], len(judged))}, judged...)
	return append(out, absent) // for other conventions
}
