//go:build linux

// Package landlock makes a wall around a root directory with Landlock, the Linux security module that needs no
// administrator. It is a second wall: the mount namespace and the chroot of a sandbox are the first. If a process comes
// out of these, such as through a descriptor of a directory that it should not have, Landlock still refuses the files
// outside.
//
// A process behind the wall, and each one that it starts, cannot mount, unmount or change its root with pivot_root,
// whatever its capabilities. So there must be no wall around a sandbox whose programs make sandboxes themselves.
//
// Each call of Restrict makes a domain of its own, even with the same ruleset, for a process and all that it starts. A process
// cannot trace one in a domain beside its own, and since version 6 not signal it. If the processes of a sandbox have to reach
// one another, only the first one may restrict itself, and it must start the others.
//
// NewRuleset and Restrict are for this process. RulesetAttr, RuleAttr and RestrictCall are for a list of system calls that a
// child makes, whose root does not exist yet.
package landlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ABI returns the version of Landlock in the kernel, from 1 on, or 0 if the kernel has none or does not use it.
func ABI() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// fileRights lists the rights to files by the version that introduced them. The wall handles all that the kernel knows:
// a right that it does not handle would be granted everywhere.
var fileRights = []struct {
	abi    int
	rights uint64
}{
	{1, unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | deviceRights},
	{2, unix.LANDLOCK_ACCESS_FS_REFER}, // version 1 refuses each rename and link into another directory
	{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
	{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
	{9, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX}, // connect to a socket by its path
}

// deviceRights are granted nowhere: with a device of its own, a privileged process would reach the disks and the memory
// of the machine. Sandboxes get the devices that they need from the host.
const deviceRights = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK

// scopeABI is the version that introduced scopes: those for signals, and those for Unix sockets with abstract names. The
// namespaces limit both already; a scope also holds for a process that has come into another namespace.
// Rights to TCP ports are not handled: a sandbox may use all ports, and the network namespace decides where they lead.
const scopeABI = 6

// RulesetAttr returns the attribute of landlock_create_ruleset, whose size is another argument, for a version of Landlock
// from 1 up to ABI().
func RulesetAttr(abi int) []byte {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: listRights(abi)}
	if abi >= scopeABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	return encodeAttr(attr) // older kernels take a longer one than theirs if the rest is 0
}

// RuleAttr returns the attribute of landlock_add_rule with unix.LANDLOCK_RULE_PATH_BENEATH. root is the number of a
// descriptor in the process that makes the call.
func RuleAttr(abi, root int) []byte {
	return encodeAttr(unix.LandlockPathBeneathAttr{Allowed_access: listRights(abi) &^ deviceRights, Parent_fd: int32(root)})
}

// listRights returns the rights to files of a version of Landlock.
func listRights(abi int) (rights uint64) {
	for _, r := range fileRights {
		if abi >= r.abi {
			rights |= r.rights
		}
	}
	return rights
}

// encodeAttr returns the bytes of a struct of the kernel, without the padding of Go: the kernel's has none.
func encodeAttr(attr any) []byte {
	out, err := binary.Append(nil, binary.NativeEndian, attr)
	if err != nil {
		panic(err) // attr has fields of no fixed size
	}
	return out
}

// NewRuleset returns a ruleset for a version of Landlock up to ABI(). It allows all that is done with files below root, also
// on mounts there, but for making devices; root is a descriptor of a directory, perhaps opened with O_PATH. It refuses
// files outside, also by a descriptor of a directory there; files that are open already stay usable. With version 6 or
// later, it refuses signals to processes outside of the domain and connections to their Unix sockets with abstract names,
// and with version 9 or later connections to other Unix sockets outside root. Version 5 on a newer kernel leaves these
// three out.
//
// Programs are descriptors of files outside root that may be read and executed.
//
// The ruleset restricts nobody until Restrict or RestrictCall. The caller closes it, and may close the other descriptors at
// once.
func NewRuleset(abi, root int, programs ...int) (*os.File, error) {
	if abi < 1 {
		return nil, errors.New("landlock: the kernel does not have it")
	}
	attr := RulesetAttr(abi)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("landlock: %w", os.NewSyscallError("landlock_create_ruleset", errno))
	}
	ruleset := os.NewFile(fd, "landlock ruleset") // the kernel sets close-on-exec
	rules := [][]byte{RuleAttr(abi, root)}
	for _, program := range programs {
		const execute = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
		rules = append(rules, encodeAttr(unix.LandlockPathBeneathAttr{Allowed_access: execute, Parent_fd: int32(program)}))
	}
	for _, rule := range rules {
		_, _, errno = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule[0])), 0, 0, 0)
		if errno != 0 {
			ruleset.Close()
			return nil, fmt.Errorf("landlock: %w", os.NewSyscallError("landlock_add_rule", errno))
		}
	}
	runtime.KeepAlive(ruleset)
	return ruleset, nil
}

// RestrictCall returns the number and the arguments of the system call by which a thread restricts itself with the ruleset
// that has this descriptor. The call needs no_new_privs or CAP_SYS_ADMIN.
func RestrictCall(ruleset uintptr) (number uintptr, args []uint64) {
	return unix.SYS_LANDLOCK_RESTRICT_SELF, []uint64{uint64(ruleset), 0}
}

// Restrict puts the calling thread behind the wall, and all that it starts from then on. There is no way back. It restricts
// no other thread, so call it after runtime.LockOSThread. It needs no_new_privs or CAP_SYS_ADMIN.
func Restrict(ruleset *os.File) error {
	number, args := RestrictCall(ruleset.Fd())
	_, _, errno := unix.Syscall(number, uintptr(args[0]), uintptr(args[1]), 0)
	runtime.KeepAlive(ruleset)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", os.NewSyscallError("landlock_restrict_self", errno))
	}
	return nil
}
