package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// systemCall returns a function that makes a system call with invalid arguments. A process that may
// make the call gets an error about them.
func systemCall(number uintptr, args ...uintptr) func() error {
	a := make([]uintptr, 6)
	copy(a, args)
	return func() error {
		_, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		return nil
	}
}

// attackKernel tries calls that only an administrator may make.
func attackKernel(_, _ string, _ []string) {
	never := ^uintptr(0)
	empty, dot := []byte{0}, []byte(".\x00")
	path := func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
	tryAll([]attempt{
		{"mount", func() error { return unix.Mount("none", "/proc/none", "tmpfs", 0, "") }, nil},
		{"mount proc", func() error { return unix.Mount("proc", "/proc/none", "proc", 0, "") }, nil},
		{"mount cgroup", func() error { return unix.Mount("cgroup", "/proc/none", "cgroup", 0, "rdma") }, nil},
		{"bind mount", func() error { return unix.Mount("/", "/proc/none", "", unix.MS_BIND, "") }, nil},
		{"remount", func() error { return unix.Mount("", "/proc/none", "", unix.MS_REMOUNT|unix.MS_BIND, "") }, nil},
		{"make mounts shared", func() error { return unix.Mount("", "/proc/none", "", unix.MS_SHARED, "") }, nil},
		{"umount", func() error { return unix.Unmount("/proc/none", unix.MNT_DETACH) }, nil},
		{"open_tree", systemCall(unix.SYS_OPEN_TREE, never, path(dot), 1), nil},
		{"fsopen", systemCall(unix.SYS_FSOPEN, path(empty), 0), nil},
		{"fspick", systemCall(unix.SYS_FSPICK, never, path(dot), 0), nil},
		{"move_mount", systemCall(unix.SYS_MOVE_MOUNT, never, path(empty), never, path(empty), 0), nil},
		{"mount_setattr", systemCall(unix.SYS_MOUNT_SETATTR, never, path(empty), never, 0, 0), nil},
		{"pivot_root", systemCall(unix.SYS_PIVOT_ROOT, path(dot), path(empty)), nil},
		{"chroot", func() error { return unix.Chroot("/proc/none") }, nil},
		{"init_module", systemCall(unix.SYS_INIT_MODULE, 0, 0, path(empty)), nil},
		{"finit_module", systemCall(unix.SYS_FINIT_MODULE, never, path(empty), 0), nil},
		{"delete_module", systemCall(unix.SYS_DELETE_MODULE, path(empty), unix.O_NONBLOCK), nil},
		{"kexec_load", systemCall(unix.SYS_KEXEC_LOAD, 0, 0, 0, never), nil},
		{"reboot", systemCall(unix.SYS_REBOOT, 1, 2, 3, 0), nil},
		{"swapon", systemCall(unix.SYS_SWAPON, path(empty), 0), nil},
		{"swapoff", systemCall(unix.SYS_SWAPOFF, path(empty)), nil},
		{"acct", systemCall(unix.SYS_ACCT, path(empty)), nil},
		{"quotactl", systemCall(unix.SYS_QUOTACTL, 0x80000100, path(empty), 0, 0), nil},
		{"sethostname", func() error { return unix.Sethostname(make([]byte, 1<<10)) }, nil},
		{"setdomainname", func() error { return unix.Setdomainname(make([]byte, 1<<10)) }, nil},
		{"clock_adjtime", func() error {
			_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &unix.Timex{Modes: unix.ADJ_TICK})
			return err
		}, nil},
		{"vhangup", systemCall(unix.SYS_VHANGUP), nil},
		{"bpf", systemCall(unix.SYS_BPF, 5, never, 0), nil},
		{"perf_event_open", systemCall(unix.SYS_PERF_EVENT_OPEN, never, 0, never, never, 0), []error{unix.ENODEV}},
		{"userfaultfd", systemCall(unix.SYS_USERFAULTFD, never), nil},
		{"fanotify_init", systemCall(unix.SYS_FANOTIFY_INIT, 0, never), nil},
		{"keyctl", systemCall(unix.SYS_KEYCTL, never), nil},
		{"add_key", systemCall(unix.SYS_ADD_KEY, path(empty), path(empty), 0, 0, never), nil},
		{"request_key", systemCall(unix.SYS_REQUEST_KEY, path(empty), path(empty), 0, never), nil},
		{"syslog", systemCall(unix.SYS_SYSLOG, 3, 0, never), nil},
		{"lookup of pages by NUMA node", systemCall(unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, never), nil},
		{"set_mempolicy", systemCall(unix.SYS_SET_MEMPOLICY, never, 0, 0), nil},
		{"setns of mounts", enterNamespace("/proc/1/ns/mnt", unix.CLONE_NEWNS), []error{unix.ENOENT}},
		{"setns of PIDs", enterNamespace("/proc/1/ns/pid", unix.CLONE_NEWPID), []error{unix.ENOENT}},
		{"setns of the network", enterNamespace("/proc/1/ns/net", unix.CLONE_NEWNET), []error{unix.ENOENT}},
		{"setns of a process", func() error {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, unix.CLONE_NEWNS)
		}, nil},
		{"real-time scheduling", systemCall(unix.SYS_SCHED_SETSCHEDULER, 0, 1, path([]byte{1, 0, 0, 0})), nil},
		{"a higher priority", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -10) }, nil},
		{"a higher limit of descriptors", func() error {
			var l unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
				return err
			}
			if l.Max == unix.RLIM_INFINITY {
				return nil
			}
			l.Max++
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
		}, nil},
		{"capabilities", func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
			return unix.Capset(&hdr, &data[0])
		}, nil},
		{"a socket for packets", openSocket(unix.AF_PACKET, unix.SOCK_RAW, 0), noFamily},
		{"a raw socket", openSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP), noFamily},
		{"a raw socket for ICMP", openSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), noFamily},
		{"a raw socket for IPv6", openSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_UDP), noFamily},
	})
}

// attackDoors tries calls that any user of a machine may make, but that bypass the isolation of a
// sandbox: sockets outside all namespaces, and parts of the kernel that sandboxes do not need.
func attackDoors(_, _ string, _ []string) {
	never := ^uintptr(0)
	tryAll([]attempt{
		{"io_uring_setup", systemCall(unix.SYS_IO_URING_SETUP, 0, never), nil},
		{"io_uring_register", systemCall(unix.SYS_IO_URING_REGISTER, never, 0, 0, 0), nil},
		{"a socket to the machine's hypervisor", openSocket(unix.AF_VSOCK, unix.SOCK_STREAM, 0), noFamily},
		{"a socket to the kernel's cryptography", openSocket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), noFamily},
		{"a socket for Bluetooth", openSocket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1), noFamily},
		{"a socket for express data", openSocket(unix.AF_XDP, unix.SOCK_RAW, 0), noFamily},
	})
}

// noFamily are the errors of a kernel without such sockets.
var noFamily = []error{unix.EAFNOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EPROTONOSUPPORT}

func openSocket(family, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

func enterNamespace(name string, kind int) func() error {
	return func() error {
		fd, err := unix.Open(name, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, kind)
	}
}

// attackNamespaces tries to start this program in new namespaces.
func attackNamespaces(marker, text string, _ []string) {
	for name, flag := range map[string]uintptr{
		"users": unix.CLONE_NEWUSER, "mounts": unix.CLONE_NEWNS, "PIDs": unix.CLONE_NEWPID, "the network": unix.CLONE_NEWNET,
		"IPC": unix.CLONE_NEWIPC, "its name": unix.CLONE_NEWUTS, "cgroups": unix.CLONE_NEWCGROUP,
		"users and mounts": unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
	} {
		cmd := exec.Command("/proc/self/exe", marker, text, "nothing")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
		if err := cmd.Run(); err == nil {
			reportEscape("a process has a new namespace of %s", name)
		}
	}
}

// attackProcesses attacks the processes args of the host, and then all other processes that it sees,
// including those of its own sandbox. It runs until it is killed.
func attackProcesses(_, _ string, args []string) {
	_ = unix.Setpgid(0, 0)
	reportBegun()
	_, _ = io.Copy(io.Discard, os.Stdin) // wait until the caller has read "begun", since the attack hits the process that forwards it
	var pids []int
	for _, arg := range args {
		var pid int
		if _, err := fmt.Sscan(arg, &pid); err != nil {
			panic(err)
		}
		pids = append(pids, pid)
	}
	for pid := range 40000 {
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		if pid != 0 && pid != os.Getpid() && unix.Kill(pid, 0) == nil {
			attackProcess(pid)
		}
	}
	for ; ; time.Sleep(10 * time.Millisecond) {
		_ = unix.Kill(-1, unix.SIGSTOP) // does not stop the sender
		_ = unix.Kill(-1, unix.SIGKILL)
	}
}

// attackProcess tries to limit, trace and kill a process.
func attackProcess(pid int) {
	for _, option := range []uintptr{unix.RLIMIT_NOFILE, unix.RLIMIT_FSIZE} {
		limit := unix.Rlimit{}
		_, _, _ = unix.RawSyscall6(unix.SYS_PRLIMIT64, uintptr(pid), option, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, 19)
	_ = systemCall(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_EXITKILL)()
	if f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0); err == nil {
		defer f.Close() // after the kill
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Close(fd)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// dialSockets dials the addresses args concurrently. Each address is a network and an address.
func dialSockets(_, _ string, args []string) {
	answers := make(chan string)
	for i := 0; i+1 < len(args); i += 2 {
		go func() {
			c, err := net.DialTimeout(args[i], args[i+1], 2*time.Second)
			if err != nil {
				answers <- ""
				return
			}
			defer c.Close()
			answers <- fmt.Sprintf("%s %s can be reached", args[i], args[i+1])
		}()
	}
	for range len(args) / 2 {
		if said := <-answers; said != "" {
			reportEscape("%s", said)
		}
	}
}

// attackGuest tries to talk to the guest of its sandbox, which is process 1, and to access what
// belongs to the guest. args are the guest's program, the name of its socket, and in hex the first
// messages of a host: one for the connection itself, and one for descriptors that it sends. If the
// guest answers, it takes this program for the host.
func attackGuest(marker, text string, args []string) {
	program, name := args[0], args[1]
	direct, err := hex.DecodeString(args[2])
	if err != nil {
		panic(err)
	}
	sent, err := hex.DecodeString(args[3])
	if err != nil {
		panic(err)
	}
	hello := func(how string, first, rights []byte) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			reportEscape("%s: the guest does not listen: %v", how, err)
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _, _ = c.WriteMsgUnix(first, rights, nil)
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			reportEscape("%s: the guest answers", how)
		}
	}
	if len(args) > 4 { // a child, started below
		hello(args[4], direct, nil)
		return
	}
	hello("a program", direct, nil)
	for _, n := range []int{1, 2, 3, 200} { // numbers of descriptors to send
		in, out := make([]int, 2), make([]int, 2)
		if err := errors.Join(unix.Pipe(in), unix.Pipe(out)); err != nil {
			panic(err)
		}
		fds := []int{in[0], out[1]}
		for len(fds) < n {
			fds = append(fds, in[0])
		}
		_, _ = unix.Write(in[1], direct[1:])
		hello("a program that sends descriptors", sent, unix.UnixRights(fds[:n]...))
		_ = unix.SetNonblock(out[0], true)
		if got, _ := unix.Read(out[0], make([]byte, 1)); got > 0 {
			reportEscape("the guest answers on descriptors that it received")
		}
		for _, fd := range []int{in[0], in[1], out[0], out[1]} {
			unix.Close(fd)
		}
	}
	for how, attr := range map[string]*syscall.SysProcAttr{
		"a child":                          {},
		"a session of its own":             {Setsid: true},
		"a process of its parent":          {Cloneflags: unix.CLONE_PARENT},
		"a new namespace of PIDs":          {Cloneflags: unix.CLONE_NEWPID},
		"new namespaces of users and PIDs": {Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID},
	} {
		cmd := exec.Command("/proc/self/exe", marker, text, "guest", program, name, args[2], args[3], how)
		cmd.SysProcAttr, cmd.Stdout = attr, os.Stdout
		_ = cmd.Run()
	}
	time.Sleep(100 * time.Millisecond) // for the child with CLONE_PARENT, which this process cannot wait for
	held := []net.Conn{}
	for range 300 { // connections that send nothing
		if c, err := net.Dial("unix", name); err == nil {
			held = append(held, c)
		}
	}
	if l, err := net.Listen("unix", name); err == nil {
		l.Close()
		reportEscape("another program can listen on the guest's socket")
	}
	tryAll([]attempt{
		{"ptrace of the guest", systemCall(unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0), nil},
		{"its memory, written", func() error {
			_, err := unix.ProcessVMWritev(1, []unix.Iovec{{Base: &make([]byte, 1)[0], Len: 1}}, []unix.RemoteIovec{{Base: 1 << 20, Len: 1}}, 0)
			return err
		}, nil},
		{"a descriptor of it", func() error {
			fd, err := unix.PidfdOpen(1, 0)
			if err == nil {
				_, err = unix.PidfdGetfd(fd, 0, 0)
			}
			return err
		}, nil},
		{"its memory", openFile("/proc/1/mem", unix.O_RDWR), nil},
		{"its environment", openFile("/proc/1/environ", unix.O_RDONLY), nil},
		{"its root directory", openFile("/proc/1/root/etc", unix.O_RDONLY), nil},
		{"its program, through it", openFile("/proc/1/exe", unix.O_RDWR), nil},
		{"its program", openFile(program, unix.O_RDWR), []error{unix.ETXTBSY}},
		{"a name beside it", openFile(program+"-new", unix.O_RDWR|unix.O_CREAT), nil},
		{"its removal", func() error { return unix.Unlink(program) }, nil},
		{"its mount's end", func() error { return unix.Unmount(filepath.Dir(program), unix.MNT_DETACH) }, nil},
	})
	for _, s := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP} {
		_ = unix.Kill(1, s)
	}
	for _, c := range held {
		c.Close()
	}
}

func openFile(name string, flags int) func() error {
	return func() error {
		fd, err := unix.Open(name, flags, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}
