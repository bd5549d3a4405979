package procgroup

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// families are those of sockets that programs use. Others lead to the machine's
// hypervisor, from which no namespace keeps, or are parts of the kernel that hardly
// any program needs and many have got in by.
var families = []uint32{unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// offline are those of programs that are to have no network, where there is one: they
// have no loopback either, which is the same network's.
var offline = []uint32{unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_NETLINK}

// confine refuses this thread, and all that descends from it, what Docker before 23
// and 25 lets containers do: sockets of other families, and io_uring, of which no
// filter sees what is done with it. It comes on top of the engine's own filter. The
// thread must be one that gains no privileges.
func confine(families []uint32) error {
	program := filter(runtime.GOARCH, families)
	if program == nil {
		return errors.New("no filter of system calls is known for " + runtime.GOARCH)
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)), 0, 0)
	runtime.KeepAlive(program)
	return os.NewSyscallError("filter system calls", err)
}

// A convention is one in which programs make system calls.
type convention struct {
	arch   uint32 // as the kernel calls it
	socket uint32
	gone   []uint32 // calls that are answered as if there were none
}

var (
	// io_uring_setup, io_uring_enter and io_uring_register, everywhere.
	ring = []uint32{425, 426, 427}

	// With socketcall, where there is one, whose arguments no filter sees. C libraries
	// since 2016 do without.
	ringAndSocketcall = append([]uint32{102}, ring...)

	i386 = convention{unix.AUDIT_ARCH_I386, 359, ringAndSocketcall}
	arm  = convention{unix.AUDIT_ARCH_ARM, 281, ring}
)

// conventions lists those of programs that run on an architecture.
var conventions = map[string][]convention{
	"amd64":   {{unix.AUDIT_ARCH_X86_64, 41, ring}, i386},
	"386":     {i386},
	"arm64":   {{unix.AUDIT_ARCH_AARCH64, 198, ring}, arm},
	"arm":     {arm},
	"riscv64": {{unix.AUDIT_ARCH_RISCV64, 198, ring}},
	"loong64": {{unix.AUDIT_ARCH_LOONGARCH64, 198, ring}},
	"ppc64le": {{unix.AUDIT_ARCH_PPC64LE, 326, ringAndSocketcall}},
	"s390x":   {{unix.AUDIT_ARCH_S390X, 359, ringAndSocketcall}},
}

// filter is the program for an architecture that judges a call, or nil. Every jump is
// over what comes next, so that it can be read from top to bottom.
func filter(goarch string, families []uint32) []unix.SockFilter {
	// Offsets in what the kernel calls struct seccomp_data.
	const number, arch, argument = 0, 4, 16
	const x32 = 0x40000000 // in the numbers of amd64 kernels' third convention
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// unless skips n instructions when what is loaded is not k, or not k at least.
	unless := func(compare uint16, k uint32, n int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: uint8(n)}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	allow := answer(unix.SECCOMP_RET_ALLOW)
	absent := answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))

	family := []unix.SockFilter{load(argument)}
	if goarch == "s390x" { // the second half of it is the lower one
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
	return append(out, absent) // of a convention that is not known
}
