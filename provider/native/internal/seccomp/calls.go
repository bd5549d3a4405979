//go:build linux && (amd64 || arm64)

package seccomp

import "golang.org/x/sys/unix"

// allowedGroups lists the calls that amd64 and arm64 have, and that the filter may allow.
var allowedGroups = []group{
	{
		name: "paths", rule: allow, nested: allow,
		reason: "The permissions of files, and Landlock, limit access by path.",
		calls: []call{
			{"openat", unix.SYS_OPENAT}, {"openat2", unix.SYS_OPENAT2}, {"close", unix.SYS_CLOSE},
			{"close_range", unix.SYS_CLOSE_RANGE}, {"faccessat", unix.SYS_FACCESSAT},
			{"faccessat2", unix.SYS_FACCESSAT2}, {"newfstatat", unix.SYS_NEWFSTATAT}, {"fstat", unix.SYS_FSTAT},
			{"statx", unix.SYS_STATX}, {"statfs", unix.SYS_STATFS}, {"fstatfs", unix.SYS_FSTATFS},
			{"getdents64", unix.SYS_GETDENTS64}, {"getcwd", unix.SYS_GETCWD}, {"chdir", unix.SYS_CHDIR},
			{"fchdir", unix.SYS_FCHDIR}, {"mkdirat", unix.SYS_MKDIRAT},
			{"mknodat", unix.SYS_MKNODAT}, {"linkat", unix.SYS_LINKAT}, {"symlinkat", unix.SYS_SYMLINKAT},
			{"readlinkat", unix.SYS_READLINKAT}, {"unlinkat", unix.SYS_UNLINKAT}, {"renameat", unix.SYS_RENAMEAT},
			{"renameat2", unix.SYS_RENAMEAT2}, {"truncate", unix.SYS_TRUNCATE}, {"ftruncate", unix.SYS_FTRUNCATE},
			{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT}, {"umask", unix.SYS_UMASK},
		},
	},
	{
		name: "attributes", rule: allow, nested: allow,
		reason: "The kernel lets the owner of a file change its attributes. file_getattr and file_setattr do the " +
			"same as two requests of ioctl.",
		calls: []call{
			{"fchmod", unix.SYS_FCHMOD}, {"fchmodat", unix.SYS_FCHMODAT}, {"fchmodat2", unix.SYS_FCHMODAT2},
			{"fchown", unix.SYS_FCHOWN}, {"fchownat", unix.SYS_FCHOWNAT}, {"utimensat", unix.SYS_UTIMENSAT},
			{"getxattr", unix.SYS_GETXATTR}, {"lgetxattr", unix.SYS_LGETXATTR}, {"fgetxattr", unix.SYS_FGETXATTR},
			{"getxattrat", unix.SYS_GETXATTRAT}, {"setxattr", unix.SYS_SETXATTR}, {"lsetxattr", unix.SYS_LSETXATTR},
			{"fsetxattr", unix.SYS_FSETXATTR}, {"setxattrat", unix.SYS_SETXATTRAT}, {"listxattr", unix.SYS_LISTXATTR},
			{"llistxattr", unix.SYS_LLISTXATTR}, {"flistxattr", unix.SYS_FLISTXATTR},
			{"listxattrat", unix.SYS_LISTXATTRAT}, {"removexattr", unix.SYS_REMOVEXATTR},
			{"lremovexattr", unix.SYS_LREMOVEXATTR}, {"fremovexattr", unix.SYS_FREMOVEXATTR},
			{"removexattrat", unix.SYS_REMOVEXATTRAT}, {"file_getattr", unix.SYS_FILE_GETATTR},
			{"file_setattr", unix.SYS_FILE_SETATTR},
		},
	},
	{
		name: "descriptors", rule: allow, nested: allow,
		reason: "They read and write files that the process has open.",
		calls: []call{
			{"read", unix.SYS_READ}, {"pread64", unix.SYS_PREAD64}, {"readv", unix.SYS_READV},
			{"preadv", unix.SYS_PREADV}, {"preadv2", unix.SYS_PREADV2}, {"write", unix.SYS_WRITE},
			{"pwrite64", unix.SYS_PWRITE64}, {"writev", unix.SYS_WRITEV}, {"pwritev", unix.SYS_PWRITEV},
			{"pwritev2", unix.SYS_PWRITEV2}, {"lseek", unix.SYS_LSEEK}, {"dup", unix.SYS_DUP}, {"dup3", unix.SYS_DUP3},
			{"fcntl", unix.SYS_FCNTL}, {"flock", unix.SYS_FLOCK}, {"pipe2", unix.SYS_PIPE2},
			{"sendfile", unix.SYS_SENDFILE}, {"splice", unix.SYS_SPLICE}, {"tee", unix.SYS_TEE},
			{"vmsplice", unix.SYS_VMSPLICE}, {"copy_file_range", unix.SYS_COPY_FILE_RANGE},
			{"fallocate", unix.SYS_FALLOCATE}, {"fadvise64", unix.SYS_FADVISE64}, {"readahead", unix.SYS_READAHEAD},
			{"cachestat", unix.SYS_CACHESTAT}, {"sync", unix.SYS_SYNC}, {"syncfs", unix.SYS_SYNCFS},
			{"fsync", unix.SYS_FSYNC}, {"fdatasync", unix.SYS_FDATASYNC}, {"sync_file_range", unix.SYS_SYNC_FILE_RANGE},
			{"io_setup", unix.SYS_IO_SETUP}, {"io_destroy", unix.SYS_IO_DESTROY}, {"io_submit", unix.SYS_IO_SUBMIT},
			{"io_cancel", unix.SYS_IO_CANCEL}, {"io_getevents", unix.SYS_IO_GETEVENTS},
			{"io_pgetevents", unix.SYS_IO_PGETEVENTS},
		},
	},
	{
		name: "events", rule: allow, nested: allow,
		reason: "They wait for descriptors, timers, signals and changes of files.",
		calls: []call{
			{"ppoll", unix.SYS_PPOLL}, {"pselect6", unix.SYS_PSELECT6}, {"epoll_create1", unix.SYS_EPOLL_CREATE1},
			{"epoll_ctl", unix.SYS_EPOLL_CTL}, {"epoll_pwait", unix.SYS_EPOLL_PWAIT},
			{"epoll_pwait2", unix.SYS_EPOLL_PWAIT2}, {"eventfd2", unix.SYS_EVENTFD2}, {"signalfd4", unix.SYS_SIGNALFD4},
			{"timerfd_create", unix.SYS_TIMERFD_CREATE}, {"timerfd_settime", unix.SYS_TIMERFD_SETTIME},
			{"timerfd_gettime", unix.SYS_TIMERFD_GETTIME}, {"inotify_init1", unix.SYS_INOTIFY_INIT1},
			{"inotify_add_watch", unix.SYS_INOTIFY_ADD_WATCH}, {"inotify_rm_watch", unix.SYS_INOTIFY_RM_WATCH},
		},
	},
	{
		name: "memory", rule: allow, nested: allow,
		reason: "They change the memory of the process itself.",
		calls: []call{
			{"brk", unix.SYS_BRK}, {"mmap", unix.SYS_MMAP}, {"munmap", unix.SYS_MUNMAP}, {"mremap", unix.SYS_MREMAP},
			{"mprotect", unix.SYS_MPROTECT}, {"pkey_alloc", unix.SYS_PKEY_ALLOC}, {"pkey_free", unix.SYS_PKEY_FREE},
			{"pkey_mprotect", unix.SYS_PKEY_MPROTECT}, {"madvise", unix.SYS_MADVISE}, {"mincore", unix.SYS_MINCORE},
			{"msync", unix.SYS_MSYNC}, {"mlock", unix.SYS_MLOCK}, {"mlock2", unix.SYS_MLOCK2},
			{"mlockall", unix.SYS_MLOCKALL}, {"munlock", unix.SYS_MUNLOCK}, {"munlockall", unix.SYS_MUNLOCKALL},
			{"mseal", unix.SYS_MSEAL}, {"memfd_create", unix.SYS_MEMFD_CREATE},
			{"map_shadow_stack", unix.SYS_MAP_SHADOW_STACK}, {"membarrier", unix.SYS_MEMBARRIER},
		},
	},
	{
		name: "processes", rule: allow, nested: allow,
		reason: "They start and end processes, read their ids, and limit them; the PID namespace hides all others.",
		calls: []call{
			{"execve", unix.SYS_EXECVE}, {"execveat", unix.SYS_EXECVEAT}, {"exit", unix.SYS_EXIT},
			{"exit_group", unix.SYS_EXIT_GROUP}, {"wait4", unix.SYS_WAIT4}, {"waitid", unix.SYS_WAITID},
			{"pidfd_open", unix.SYS_PIDFD_OPEN}, {"pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL},
			{"process_mrelease", unix.SYS_PROCESS_MRELEASE}, {"getpid", unix.SYS_GETPID}, {"getppid", unix.SYS_GETPPID},
			{"gettid", unix.SYS_GETTID}, {"getpgid", unix.SYS_GETPGID}, {"setpgid", unix.SYS_SETPGID},
			{"getsid", unix.SYS_GETSID}, {"setsid", unix.SYS_SETSID}, {"getrusage", unix.SYS_GETRUSAGE},
			{"getrlimit", unix.SYS_GETRLIMIT}, {"setrlimit", unix.SYS_SETRLIMIT}, {"prlimit64", unix.SYS_PRLIMIT64},
			{"prctl", unix.SYS_PRCTL},
		},
	},
	{
		name: "signals", rule: allow, nested: allow,
		reason: "They send signals inside the PID namespace, and receive them.",
		calls: []call{
			{"kill", unix.SYS_KILL}, {"tkill", unix.SYS_TKILL}, {"tgkill", unix.SYS_TGKILL},
			{"rt_sigaction", unix.SYS_RT_SIGACTION}, {"rt_sigprocmask", unix.SYS_RT_SIGPROCMASK},
			{"rt_sigpending", unix.SYS_RT_SIGPENDING}, {"rt_sigsuspend", unix.SYS_RT_SIGSUSPEND},
			{"rt_sigtimedwait", unix.SYS_RT_SIGTIMEDWAIT}, {"rt_sigqueueinfo", unix.SYS_RT_SIGQUEUEINFO},
			{"rt_tgsigqueueinfo", unix.SYS_RT_TGSIGQUEUEINFO}, {"rt_sigreturn", unix.SYS_RT_SIGRETURN},
			{"sigaltstack", unix.SYS_SIGALTSTACK}, {"restart_syscall", unix.SYS_RESTART_SYSCALL},
		},
	},
	{
		name: "threads", rule: allow, nested: allow,
		reason: "Threads lock data and wait for one another with them.",
		calls: []call{
			{"futex", unix.SYS_FUTEX}, {"futex_wait", unix.SYS_FUTEX_WAIT}, {"futex_waitv", unix.SYS_FUTEX_WAITV},
			{"futex_wake", unix.SYS_FUTEX_WAKE}, {"futex_requeue", unix.SYS_FUTEX_REQUEUE},
			{"set_tid_address", unix.SYS_SET_TID_ADDRESS}, {"set_robust_list", unix.SYS_SET_ROBUST_LIST},
			{"get_robust_list", unix.SYS_GET_ROBUST_LIST}, {"rseq", unix.SYS_RSEQ},
			{"rseq_slice_yield", unix.SYS_RSEQ_SLICE_YIELD},
		},
	},
	{
		name: "scheduling", rule: allow, nested: allow,
		reason: "They divide the CPUs among the programs of the sandbox; the cgroup limits the sum, and the kernel " +
			"refuses real-time priorities without CAP_SYS_NICE.",
		calls: []call{
			{"sched_yield", unix.SYS_SCHED_YIELD}, {"getcpu", unix.SYS_GETCPU},
			{"sched_getaffinity", unix.SYS_SCHED_GETAFFINITY}, {"sched_setaffinity", unix.SYS_SCHED_SETAFFINITY},
			{"sched_getparam", unix.SYS_SCHED_GETPARAM}, {"sched_setparam", unix.SYS_SCHED_SETPARAM},
			{"sched_getscheduler", unix.SYS_SCHED_GETSCHEDULER}, {"sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER},
			{"sched_getattr", unix.SYS_SCHED_GETATTR}, {"sched_setattr", unix.SYS_SCHED_SETATTR},
			{"sched_get_priority_max", unix.SYS_SCHED_GET_PRIORITY_MAX},
			{"sched_get_priority_min", unix.SYS_SCHED_GET_PRIORITY_MIN},
			{"sched_rr_get_interval", unix.SYS_SCHED_RR_GET_INTERVAL}, {"getpriority", unix.SYS_GETPRIORITY},
			{"setpriority", unix.SYS_SETPRIORITY}, {"ioprio_get", unix.SYS_IOPRIO_GET},
			{"ioprio_set", unix.SYS_IOPRIO_SET},
		},
	},
	{
		name: "clocks", rule: allow, nested: allow,
		reason: "They read clocks and set timers; the kernel refuses to adjust a clock without CAP_SYS_TIME.",
		calls: []call{
			{"gettimeofday", unix.SYS_GETTIMEOFDAY}, {"times", unix.SYS_TIMES},
			{"clock_gettime", unix.SYS_CLOCK_GETTIME}, {"clock_getres", unix.SYS_CLOCK_GETRES},
			{"clock_nanosleep", unix.SYS_CLOCK_NANOSLEEP}, {"nanosleep", unix.SYS_NANOSLEEP},
			{"adjtimex", unix.SYS_ADJTIMEX}, {"clock_adjtime", unix.SYS_CLOCK_ADJTIME},
			{"getitimer", unix.SYS_GETITIMER}, {"setitimer", unix.SYS_SETITIMER},
			{"timer_create", unix.SYS_TIMER_CREATE}, {"timer_delete", unix.SYS_TIMER_DELETE},
			{"timer_gettime", unix.SYS_TIMER_GETTIME}, {"timer_settime", unix.SYS_TIMER_SETTIME},
			{"timer_getoverrun", unix.SYS_TIMER_GETOVERRUN},
		},
	},
	{
		name: "users", rule: allow, nested: allow,
		reason: "They change ids to others of the user namespace, and give up capabilities.",
		calls: []call{
			{"getuid", unix.SYS_GETUID}, {"geteuid", unix.SYS_GETEUID}, {"getresuid", unix.SYS_GETRESUID},
			{"setuid", unix.SYS_SETUID}, {"setreuid", unix.SYS_SETREUID}, {"setresuid", unix.SYS_SETRESUID},
			{"setfsuid", unix.SYS_SETFSUID}, {"getgid", unix.SYS_GETGID}, {"getegid", unix.SYS_GETEGID},
			{"getresgid", unix.SYS_GETRESGID}, {"setgid", unix.SYS_SETGID}, {"setregid", unix.SYS_SETREGID},
			{"setresgid", unix.SYS_SETRESGID}, {"setfsgid", unix.SYS_SETFSGID}, {"getgroups", unix.SYS_GETGROUPS},
			{"setgroups", unix.SYS_SETGROUPS}, {"capget", unix.SYS_CAPGET}, {"capset", unix.SYS_CAPSET},
		},
	},
	{
		name: "sockets", rule: allow, nested: allow,
		reason: "They work on sockets that the process has, in the network namespace of the sandbox.",
		calls: []call{
			{"bind", unix.SYS_BIND}, {"listen", unix.SYS_LISTEN}, {"accept", unix.SYS_ACCEPT},
			{"accept4", unix.SYS_ACCEPT4}, {"connect", unix.SYS_CONNECT}, {"shutdown", unix.SYS_SHUTDOWN},
			{"getsockname", unix.SYS_GETSOCKNAME}, {"getpeername", unix.SYS_GETPEERNAME},
			{"getsockopt", unix.SYS_GETSOCKOPT}, {"setsockopt", unix.SYS_SETSOCKOPT}, {"sendto", unix.SYS_SENDTO},
			{"sendmsg", unix.SYS_SENDMSG}, {"sendmmsg", unix.SYS_SENDMMSG}, {"recvfrom", unix.SYS_RECVFROM},
			{"recvmsg", unix.SYS_RECVMSG}, {"recvmmsg", unix.SYS_RECVMMSG},
		},
	},
	{
		name: "ipc", rule: allow, nested: allow,
		reason: "Shared memory, semaphores and queues belong to the IPC namespace of the sandbox.",
		calls: []call{
			{"shmget", unix.SYS_SHMGET}, {"shmat", unix.SYS_SHMAT}, {"shmdt", unix.SYS_SHMDT},
			{"shmctl", unix.SYS_SHMCTL}, {"semget", unix.SYS_SEMGET}, {"semop", unix.SYS_SEMOP},
			{"semtimedop", unix.SYS_SEMTIMEDOP}, {"semctl", unix.SYS_SEMCTL}, {"msgget", unix.SYS_MSGGET},
			{"msgsnd", unix.SYS_MSGSND}, {"msgrcv", unix.SYS_MSGRCV}, {"msgctl", unix.SYS_MSGCTL},
			{"mq_open", unix.SYS_MQ_OPEN}, {"mq_unlink", unix.SYS_MQ_UNLINK}, {"mq_timedsend", unix.SYS_MQ_TIMEDSEND},
			{"mq_timedreceive", unix.SYS_MQ_TIMEDRECEIVE}, {"mq_notify", unix.SYS_MQ_NOTIFY},
			{"mq_getsetattr", unix.SYS_MQ_GETSETATTR},
		},
	},
	{
		name: "system", rule: allow, nested: allow,
		reason: "They return random bytes, and facts about the kernel and about the mounts of the sandbox.",
		calls: []call{
			{"uname", unix.SYS_UNAME}, {"sysinfo", unix.SYS_SYSINFO}, {"getrandom", unix.SYS_GETRANDOM},
			{"statmount", unix.SYS_STATMOUNT}, {"listmount", unix.SYS_LISTMOUNT},
		},
	},
	{
		name: "debugging", rule: allow, nested: allow,
		reason: "Debuggers need them, and since Linux 4.8 a traced process cannot evade the filter. A kernel that " +
			"probes a program puts uprobe and uretprobe into it.",
		calls: []call{
			{"ptrace", unix.SYS_PTRACE}, {"process_vm_readv", unix.SYS_PROCESS_VM_READV},
			{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV},
		},
	},
	{
		name: "sandboxing", rule: allow, nested: allow,
		reason: "Programs restrict themselves with them, and cannot loosen the restrictions that they have.",
		calls: []call{
			{"seccomp", unix.SYS_SECCOMP}, {"landlock_create_ruleset", unix.SYS_LANDLOCK_CREATE_RULESET},
			{"landlock_add_rule", unix.SYS_LANDLOCK_ADD_RULE},
			{"landlock_restrict_self", unix.SYS_LANDLOCK_RESTRICT_SELF},
		},
	},
	{
		name: "clone", rule: refuseNamespaces, nested: allow,
		reason: "It starts processes and threads. Flags for new namespaces, which give capabilities inside and so " +
			"open much of the kernel to attacks, need the option Nested.",
		calls: []call{
			{"clone", unix.SYS_CLONE},
		},
	},
	{
		name: "clone3", rule: hide, nested: allow,
		reason: "Its flags are in memory, where no filter sees them. Without the option Nested the answer is " +
			"ENOSYS, and libraries call clone.",
		calls: []call{
			{"clone3", unix.SYS_CLONE3},
		},
	},
	{
		name: "ioctl", rule: refuseTyping, nested: refuseTyping,
		reason: "It controls devices and terminals. TIOCSTI and TIOCLINUX, which type into a terminal as if the " +
			"user did, are refused.",
		calls: []call{
			{"ioctl", unix.SYS_IOCTL},
		},
	},
	{
		name: "families", rule: limitFamilies, nested: limitFamilies,
		reason: "They create sockets of the families AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. Others leave the " +
			"network namespace, as AF_VSOCK does, or load rarely used modules of the kernel.",
		calls: []call{
			{"socket", unix.SYS_SOCKET}, {"socketpair", unix.SYS_SOCKETPAIR},
		},
	},
	{
		name: "personality", rule: limitPersonality, nested: limitPersonality,
		reason: "It chooses the reported machine and version. Flags that weaken the protection of memory are refused.",
		calls: []call{
			{"personality", unix.SYS_PERSONALITY},
		},
	},
	{
		name: "namespaces", rule: refuse, nested: allow,
		reason: "Programs that make sandboxes themselves need them, with the option Nested. They change the " +
			"namespaces and mounts of the sandbox only, but with them much more of the kernel can be attacked.",
		calls: []call{
			{"chroot", unix.SYS_CHROOT}, {"unshare", unix.SYS_UNSHARE}, {"setns", unix.SYS_SETNS}, {"mount", unix.SYS_MOUNT},
			{"umount2", unix.SYS_UMOUNT2}, {"pivot_root", unix.SYS_PIVOT_ROOT}, {"open_tree", unix.SYS_OPEN_TREE},
			{"open_tree_attr", unix.SYS_OPEN_TREE_ATTR}, {"move_mount", unix.SYS_MOVE_MOUNT},
			{"mount_setattr", unix.SYS_MOUNT_SETATTR}, {"fsopen", unix.SYS_FSOPEN}, {"fsconfig", unix.SYS_FSCONFIG},
			{"fsmount", unix.SYS_FSMOUNT}, {"fspick", unix.SYS_FSPICK}, {"sethostname", unix.SYS_SETHOSTNAME},
			{"setdomainname", unix.SYS_SETDOMAINNAME},
		},
	},
}
