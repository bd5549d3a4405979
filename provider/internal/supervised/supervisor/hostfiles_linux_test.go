package supervisor

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The filter refuses the bits and the types of files that are dangerous on the host, and nothing else.
func TestHostFilesFilter(t *testing.T) {
	const allowed, denied, absent = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	const tmpfile = 0o20000000 | unix.O_DIRECTORY
	for goarch, fchmod := range map[string]uint32{"amd64": 91, "arm64": 52} {
		arch, number := auditArchs[goarch], func(amd64, arm64 uint32) uint32 { return map[string]uint32{"amd64": amd64, "arm64": arm64}[goarch] }
		for _, tt := range []struct {
			what   string
			arch   uint32
			number uint32
			args   []uint32
			want   uint32
		}{
			{"fchmod 0777", arch, fchmod, []uint32{3, 0o777}, allowed},
			{"fchmod 1777", arch, fchmod, []uint32{3, 0o1777}, allowed},
			{"fchmod 4755", arch, fchmod, []uint32{3, 0o4755}, denied},
			{"fchmod 2755", arch, fchmod, []uint32{3, 0o2755}, denied},
			{"fchmodat 4755", arch, number(268, 53), []uint32{3, 0, 0o4755}, denied},
			{"fchmodat2 4755", arch, 452, []uint32{3, 0, 0o4755}, denied},
			{"openat without O_CREAT, mode undefined", arch, number(257, 56), []uint32{3, 0, unix.O_RDWR, 0o7777}, allowed},
			{"openat 4755", arch, number(257, 56), []uint32{3, 0, unix.O_RDWR | unix.O_CREAT, 0o4755}, denied},
			{"openat of a temporary file 4755", arch, number(257, 56), []uint32{3, 0, unix.O_RDWR | tmpfile, 0o4755}, denied},
			{"openat of a directory", arch, number(257, 56), []uint32{3, 0, unix.O_DIRECTORY, 0o4755}, allowed},
			{"openat 0644", arch, number(257, 56), []uint32{3, 0, unix.O_RDWR | unix.O_CREAT, 0o644}, allowed},
			{"mknodat, a file", arch, number(259, 33), []uint32{3, 0, unix.S_IFREG | 0o644}, allowed},
			{"mknodat, a pipe", arch, number(259, 33), []uint32{3, 0, unix.S_IFIFO | 0o644}, allowed},
			{"mknodat, a socket", arch, number(259, 33), []uint32{3, 0, unix.S_IFSOCK | 0o644}, allowed},
			{"mknodat, a disk", arch, number(259, 33), []uint32{3, 0, unix.S_IFBLK | 0o600}, denied},
			{"mknodat, a character device", arch, number(259, 33), []uint32{3, 0, unix.S_IFCHR | 0o600}, denied},
			{"mknodat 4755", arch, number(259, 33), []uint32{3, 0, unix.S_IFREG | 0o4755}, denied},
			{"openat2 of gVisor", arch, 437, []uint32{3, 0, 0, 24}, allowed},
			{"another call", arch, 0, []uint32{0o7777, 0o7777, 0o7777, 0o7777}, allowed},
			{"another convention", arch + 1, fchmod, []uint32{3, 0o777}, absent},
		} {
			if got := runHostFilesFilter(t, goarch, tt.arch, tt.number, tt.args); got != tt.want {
				t.Errorf("%s, %s: %#x, want %#x", goarch, tt.what, got, tt.want)
			}
		}
	}
	if got := runHostFilesFilter(t, "amd64", unix.AUDIT_ARCH_X86_64, 0x40000000+91, []uint32{3, 0o777}); got != absent {
		t.Errorf("x32: %#x, want %#x", got, absent)
	}
	for goarch := range auditArchs {
		if got := runHostFilesProgram(t, hostFilesProgram(goarch, false), auditArchs[goarch], 437, []uint32{3, 0, 0, 24}); got != absent {
			t.Errorf("%s, openat2 of a virtual machine: %#x, want %#x", goarch, got, absent)
		}
	}
	if hostFilesProgram("none", true) != nil {
		t.Error("there is a filter for what is no architecture")
	}
	if calls := hostFilesCalls[runtime.GOARCH]; calls != nil && calls[len(calls)-1].number != unix.SYS_OPENAT {
		t.Errorf("openat is call %d here, the filter takes it for %d", unix.SYS_OPENAT, calls[len(calls)-1].number)
	}
}

// runHostFilesFilter runs the filter as a kernel does.
func runHostFilesFilter(t *testing.T, goarch string, arch, number uint32, args []uint32) uint32 {
	t.Helper()
	return runHostFilesProgram(t, hostFilesProgram(goarch, true), arch, number, args)
}

func runHostFilesProgram(t *testing.T, program []unix.SockFilter, arch, number uint32, args []uint32) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data, number)
	binary.LittleEndian.PutUint32(data[4:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[16+8*i:], uint64(a))
	}
	loaded := uint32(0)
	for pc := 0; pc < len(program); pc++ {
		in, taken := program[pc], true
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			loaded = binary.LittleEndian.Uint32(data[in.K:])
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			taken = loaded == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			taken = loaded >= in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			taken = loaded&in.K != 0
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d is %+v", pc, in)
		}
		if !taken {
			pc += int(in.Jf)
		}
	}
	t.Fatal("the filter does not end")
	return 0
}
