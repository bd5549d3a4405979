package procgroup

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// In each convention the filter allows the calls that programs need, and denies the
// others.
func TestFilter(t *testing.T) {
	const allowed, absent, noFamily = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS), unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
	for goarch, list := range conventions {
		for _, c := range list {
			for _, tt := range []struct {
				what             string
				arch, nr, family uint32
				want             uint32
			}{
				{"a call", c.arch, 1, 0, allowed},
				{"a Unix socket", c.arch, c.socket, unix.AF_UNIX, allowed},
				{"a netlink socket", c.arch, c.socket, unix.AF_NETLINK, allowed},
				{"an IPv6 socket", c.arch, c.socket, unix.AF_INET6, allowed},
				{"a vsock", c.arch, c.socket, unix.AF_VSOCK, noFamily},
				{"a packet socket", c.arch, c.socket, unix.AF_PACKET, noFamily},
				{"io_uring_setup", c.arch, 425, 0, absent},
				{"io_uring_register", c.arch, 427, 0, absent},
				{"the call after it", c.arch, 428, 0, allowed},
				{"an unknown convention", c.arch + 1, 1, 0, absent},
			} {
				if got := runFilter(t, goarch, tt.arch, tt.nr, tt.family); got != tt.want {
					t.Errorf("%s, arch %#x, %s: %#x, want %#x", goarch, c.arch, tt.what, got, tt.want)
				}
			}
		}
	}
	for what, got := range map[string]uint32{
		"x32":        runFilter(t, "amd64", unix.AUDIT_ARCH_X86_64, 0x40000000+41, unix.AF_VSOCK),
		"socketcall": runFilter(t, "amd64", unix.AUDIT_ARCH_I386, 102, 1),
	} {
		if got != absent {
			t.Errorf("%s: %#x, want it absent", what, got)
		}
	}
	if conventions[runtime.GOARCH] != nil && conventions[runtime.GOARCH][0].socket != unix.SYS_SOCKET {
		t.Errorf("socket is call %d here, the filter takes it for %d", unix.SYS_SOCKET, conventions[runtime.GOARCH][0].socket)
	}
	for family, want := range map[uint32]uint32{unix.AF_UNIX: allowed, unix.AF_NETLINK: allowed, unix.AF_INET: noFamily, unix.AF_INET6: noFamily, unix.AF_VSOCK: noFamily} {
		for goarch, list := range conventions {
			if got := judgeBy(t, goarch, seccompProgram(goarch, offlineFamilies), list[0].arch, list[0].socket, family); got != want {
				t.Errorf("%s, without a network, family %d: %#x, want %#x", goarch, family, got, want)
			}
		}
	}
	if seccompProgram("none", socketFamilies) != nil {
		t.Error("there is a filter for what is no architecture")
	}
}

func runFilter(t *testing.T, goarch string, arch, nr, family uint32) uint32 {
	t.Helper()
	return judgeBy(t, goarch, seccompProgram(goarch, socketFamilies), arch, nr, family)
}

// judgeBy runs a filter as a kernel does.
func judgeBy(t *testing.T, goarch string, program []unix.SockFilter, arch, nr, family uint32) uint32 {
	t.Helper()
	data := make([]byte, 64)
	order := binary.ByteOrder(binary.LittleEndian)
	if goarch == "s390x" {
		order = binary.BigEndian
	}
	order.PutUint32(data, nr)
	order.PutUint32(data[4:], arch)
	order.PutUint64(data[16:], uint64(family))
	loaded := uint32(0)
	for pc := 0; pc < len(program); pc++ {
		switch in := program[pc]; in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			loaded = order.Uint32(data[in.K:])
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if loaded != in.K {
				pc += int(in.Jf)
			}
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			if loaded < in.K {
				pc += int(in.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d of %s is %+v", pc, goarch, in)
		}
	}
	t.Fatalf("the filter of %s does not end", goarch)
	return 0
}
