//go:build linux

package seccomp

import "golang.org/x/sys/unix"

// The convention of 64-bit programs on amd64.
const (
	hostAudit  = unix.AUDIT_ARCH_X86_64
	newestCall = unix.SYS_RSEQ_SLICE_YIELD
)

// unassigned lists the ranges of numbers below newestCall that have no calls. Linux may add calls of this architecture
// there: uprobe was one.
var unassigned = []numbers{{unix.SYS_UPROBE + 1, unix.SYS_PIDFD_SEND_SIGNAL - 1}}

// ownCalls lists the calls that arm64 does not have, by the names of their groups. Most of them are the first of two
// versions of a call, and have all that is dangerous about the second one.
var ownCalls = map[string][]call{
	"paths": {
		{"open", unix.SYS_OPEN}, {"creat", unix.SYS_CREAT}, {"access", unix.SYS_ACCESS}, {"stat", unix.SYS_STAT},
		{"lstat", unix.SYS_LSTAT}, {"getdents", unix.SYS_GETDENTS}, {"mkdir", unix.SYS_MKDIR},
		{"rmdir", unix.SYS_RMDIR}, {"mknod", unix.SYS_MKNOD}, {"link", unix.SYS_LINK}, {"symlink", unix.SYS_SYMLINK},
		{"readlink", unix.SYS_READLINK}, {"unlink", unix.SYS_UNLINK}, {"rename", unix.SYS_RENAME},
	},
	"attributes": {
		{"chmod", unix.SYS_CHMOD}, {"chown", unix.SYS_CHOWN}, {"lchown", unix.SYS_LCHOWN}, {"utime", unix.SYS_UTIME},
		{"utimes", unix.SYS_UTIMES}, {"futimesat", unix.SYS_FUTIMESAT},
	},
	"descriptors": {
		{"dup2", unix.SYS_DUP2}, {"pipe", unix.SYS_PIPE},
	},
	"events": {
		{"poll", unix.SYS_POLL}, {"select", unix.SYS_SELECT}, {"epoll_create", unix.SYS_EPOLL_CREATE},
		{"epoll_wait", unix.SYS_EPOLL_WAIT}, {"eventfd", unix.SYS_EVENTFD}, {"signalfd", unix.SYS_SIGNALFD},
		{"inotify_init", unix.SYS_INOTIFY_INIT},
	},
	"processes": {
		{"fork", unix.SYS_FORK}, {"vfork", unix.SYS_VFORK}, {"getpgrp", unix.SYS_GETPGRP},
		{"arch_prctl", unix.SYS_ARCH_PRCTL},
	},
	"signals": {
		{"pause", unix.SYS_PAUSE},
	},
	"clocks": {
		{"time", unix.SYS_TIME}, {"alarm", unix.SYS_ALARM},
	},
	"debugging": {
		{"uprobe", unix.SYS_UPROBE}, {"uretprobe", unix.SYS_URETPROBE},
	},
	"machine": {
		{"iopl", unix.SYS_IOPL}, {"ioperm", unix.SYS_IOPERM},
	},
	"obsolete": {
		{"create_module", unix.SYS_CREATE_MODULE}, {"query_module", unix.SYS_QUERY_MODULE},
		{"get_kernel_syms", unix.SYS_GET_KERNEL_SYMS}, {"uselib", unix.SYS_USELIB}, {"ustat", unix.SYS_USTAT},
		{"sysfs", unix.SYS_SYSFS}, {"_sysctl", unix.SYS__SYSCTL}, {"getpmsg", unix.SYS_GETPMSG},
		{"putpmsg", unix.SYS_PUTPMSG}, {"afs_syscall", unix.SYS_AFS_SYSCALL}, {"tuxcall", unix.SYS_TUXCALL},
		{"security", unix.SYS_SECURITY}, {"vserver", unix.SYS_VSERVER}, {"epoll_ctl_old", unix.SYS_EPOLL_CTL_OLD},
		{"epoll_wait_old", unix.SYS_EPOLL_WAIT_OLD}, {"get_thread_area", unix.SYS_GET_THREAD_AREA},
		{"set_thread_area", unix.SYS_SET_THREAD_AREA}, {"modify_ldt", unix.SYS_MODIFY_LDT},
	},
}
