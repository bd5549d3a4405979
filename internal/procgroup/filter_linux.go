package procgroup

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketFamilies lists the families of sockets that programs may use. Other families reach
// the machine's hypervisor, which no namespace hides, or parts of the kernel that hardly
// any program needs and that many exploits have used.
var socketFamilies = []uint32{unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// offlineFamilies lists the families for programs without a network on a machine that has
// one. They have no loopback either, which belongs to the same network.
var offlineFamilies = []uint32{unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_NETLINK}

// setSeccompFilter denies this thread and its descendants two things that Docker before 23
// and 25 allows to containers: sockets of other families, and io_uring, whose operations no
// filter sees. The filter applies in addition to the engine's own. The thread must have
// no_new_privs set.
func setSeccompFilter(families []uint32) error {
	program := seccompProgram(runtime.GOARCH, families)
	if program == nil {
		return errors.New("no seccomp filter for the architecture " + runtime.GOARCH)
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)), 0, 0)
	runtime.KeepAlive(program)
	return os.NewSyscallError("filter system calls", err)
}

// A convention is a calling convention of system calls.
type convention struct {
	arch   uint32 // the kernel's AUDIT_ARCH number
	socket uint32
	gone   []uint32 // calls that fail as if the kernel did not have them
}

var (
	// io_uring_setup, io_uring_enter and io_uring_register, everywhere.
	ioUringCalls = []uint32{425, 426, 427}

	// With socketcall, on architectures that have it: no filter sees its arguments. C
	// libraries since 2016 do not use it.
	ioUringAndSocketcall = append([]uint32{102}, ioUringCalls...)

	i386 = convention{unix.AUDIT_ARCH_I386, 359, ioUringAndSocketcall}
	arm  = convention{unix.AUDIT_ARCH_ARM, 281, ioUringCalls}
)

// conventions lists the conventions of the programs that run on an architecture.
var conventions = map[string][]convention{
	"amd64":   {{unix.AUDIT_ARCH_X86_64, 41, ioUringCalls}, i386},
	"386":     {i386},
	"arm64":   {{unix.AUDIT_ARCH_AARCH64, 198, ioUringCalls}, arm},
	"arm":     {arm},
	"riscv64": {{unix.AUDIT_ARCH_RISCV64, 198, ioUringCalls}},
	"loong64": {{unix.AUDIT_ARCH_LOONGARCH64, 198, ioUringCalls}},
	"ppc64le": {{unix.AUDIT_ARCH_PPC64LE, 326, ioUringAndSocketcall}},
	"s390x":   {{unix.AUDIT_ARCH_S390X, 359, ioUringAndSocketcall}},
}

// seccompProgram returns the filter for an architecture, or nil if there is none. Each jump
// skips the following instructions, so that it reads from top to bottom.
func seccompProgram(goarch string, families []uint32) []unix.SockFilter {
	// Offsets in the kernel's struct seccomp_data.
	const number, arch, argument = 0, 4, 16
	const x32 = 0x40000000 // in the numbers of amd64 kernels' third convention
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// unless skips n instructions if the loaded value is not k, or less than k.
	unless := func(compare uint16, k uint32, n int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: uint8(n)}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	allow := answer(unix.SECCOMP_RET_ALLOW)
	absent := answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))

	family := []unix.SockFilter{load(argument)}
	if goarch == "s390x" { // big-endian: the lower half is the second one
		family[0] = load(argument + 4)
	}
	for _, f := range families {
		family = append(family, unless(unix.BPF_JEQ, f, 1), allow)
	}
	family = append(family, answer(unix.SECCOMP_RET_ERRNO|uint32(unix.EAFNOSUPPORT)))

	var out []unix.SockFilter
	for _, c := range conventions[goarch] {
		calls := []unix.SockFilter{load(number)}
		if goarch == "amd64" {
			calls = append(calls, unless(unix.BPF_JGE, x32, 1), absent)
		}
		for _, n := range c.gone {
			calls = append(calls, unless(unix.BPF_JEQ, n, 1), absent)
		}
		calls = append(calls, unless(unix.BPF_JEQ, c.socket, len(family)))
		calls = append(append(calls, family...), allow)
		out = append(append(out, load(arch), unless(unix.BPF_JEQ, c.arch, len(calls))), calls...)
	}
	if out == nil {
		return nil
	}
	return append(out, absent) // for unknown conventions
}
