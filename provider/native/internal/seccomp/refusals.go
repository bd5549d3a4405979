//go:build linux && (amd64 || arm64)

package seccomp

import "golang.org/x/sys/unix"

// refusedGroups lists the calls that the filter refuses. It refuses any call that is not in allowedGroups; this list
// records that somebody has judged each one, and why it is not there.
var refusedGroups = []group{
	{
		name: "machine", rule: refuse, nested: refuse,
		reason: "They change or stop the whole machine: its kernel, clock, swap, I/O ports, quotas and accounting.",
		calls: []call{
			{"reboot", unix.SYS_REBOOT}, {"kexec_load", unix.SYS_KEXEC_LOAD},
			{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD}, {"init_module", unix.SYS_INIT_MODULE},
			{"finit_module", unix.SYS_FINIT_MODULE}, {"delete_module", unix.SYS_DELETE_MODULE},
			{"swapon", unix.SYS_SWAPON}, {"swapoff", unix.SYS_SWAPOFF}, {"acct", unix.SYS_ACCT},
			{"quotactl", unix.SYS_QUOTACTL}, {"quotactl_fd", unix.SYS_QUOTACTL_FD}, {"syslog", unix.SYS_SYSLOG},
			{"settimeofday", unix.SYS_SETTIMEOFDAY}, {"clock_settime", unix.SYS_CLOCK_SETTIME},
			{"vhangup", unix.SYS_VHANGUP},
		},
	},
	{
		name: "keys", rule: refuse, nested: refuse,
		reason: "A sandbox would inherit the keys of the session that starts it, and namespaces isolate keys only in part.",
		calls: []call{
			{"add_key", unix.SYS_ADD_KEY}, {"request_key", unix.SYS_REQUEST_KEY}, {"keyctl", unix.SYS_KEYCTL},
		},
	},
	{
		name: "rings", rule: refuse, nested: refuse,
		reason: "No filter sees the operations that a program puts into a ring of io_uring.",
		calls: []call{
			{"io_uring_setup", unix.SYS_IO_URING_SETUP}, {"io_uring_enter", unix.SYS_IO_URING_ENTER},
			{"io_uring_register", unix.SYS_IO_URING_REGISTER},
		},
	},
	{
		name: "tracing", rule: refuse, nested: refuse,
		reason: "They run code in the kernel, measure other programs, or stop the kernel in the middle of a copy, " +
			"which makes its faults exploitable.",
		calls: []call{
			{"bpf", unix.SYS_BPF}, {"perf_event_open", unix.SYS_PERF_EVENT_OPEN}, {"userfaultfd", unix.SYS_USERFAULTFD},
		},
	},
	{
		name: "handles", rule: refuse, nested: refuse,
		reason: "They open and watch the files of a whole file system, also outside the root of the sandbox.",
		calls: []call{
			{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT}, {"fanotify_init", unix.SYS_FANOTIFY_INIT},
			{"fanotify_mark", unix.SYS_FANOTIFY_MARK},
		},
	},
	{
		name: "borrowing", rule: refuse, nested: refuse,
		reason: "They take descriptors and advice to other processes, and compare them. A process that the host has " +
			"just put into the sandbox still has descriptors of the host.",
		calls: []call{
			{"pidfd_getfd", unix.SYS_PIDFD_GETFD}, {"kcmp", unix.SYS_KCMP},
			{"process_madvise", unix.SYS_PROCESS_MADVISE},
		},
	},
	{
		name: "placement", rule: refuse, nested: refuse,
		reason: "They place memory on nodes and move the pages of other processes; the place is a choice of the host.",
		calls: []call{
			{"get_mempolicy", unix.SYS_GET_MEMPOLICY}, {"set_mempolicy", unix.SYS_SET_MEMPOLICY},
			{"set_mempolicy_home_node", unix.SYS_SET_MEMPOLICY_HOME_NODE}, {"mbind", unix.SYS_MBIND},
			{"migrate_pages", unix.SYS_MIGRATE_PAGES}, {"move_pages", unix.SYS_MOVE_PAGES},
		},
	},
	{
		name: "secrets", rule: refuse, nested: refuse,
		reason: "memfd_secret takes memory that the kernel can neither move, swap nor read, and few programs need it.",
		calls: []call{
			{"memfd_secret", unix.SYS_MEMFD_SECRET},
		},
	},
	{
		name: "listings", rule: refuse, nested: refuse,
		reason: "listns lists namespaces by id, and few tools need it yet.",
		calls: []call{
			{"listns", unix.SYS_LISTNS},
		},
	},
	{
		name: "modules", rule: refuse, nested: refuse,
		reason: "They read and set labels of the host's security modules.",
		calls: []call{
			{"lsm_get_self_attr", unix.SYS_LSM_GET_SELF_ATTR}, {"lsm_set_self_attr", unix.SYS_LSM_SET_SELF_ATTR},
			{"lsm_list_modules", unix.SYS_LSM_LIST_MODULES},
		},
	},
	{
		name: "obsolete", rule: refuse, nested: refuse,
		reason: "Linux no longer has most of them, and no recent 64-bit program needs the others.",
		calls: []call{
			{"nfsservctl", unix.SYS_NFSSERVCTL}, {"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE},
			{"remap_file_pages", unix.SYS_REMAP_FILE_PAGES},
		},
	},
}
