package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attackFiles tries to reach the marker: with "..", through the directories and descriptors of
// processes in /proc, from a chroot, and by the marker's file handle, which is args[0] as "TYPE:HEX".
func attackFiles(marker, text string, args []string) {
	routes := []string{strings.Repeat("../", 50) + marker}
	for _, pattern := range []string{
		"/proc/[0-9]*/root", "/proc/[0-9]*/cwd", "/proc/[0-9]*/fd/*", "/proc/[0-9]*/task/*/root", "/proc/[0-9]*/task/*/cwd",
		"/proc/self/fd/*", "/dev/fd/*", "/sys/fs/cgroup", "/proc/[0-9]*/map_files/*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			panic(err)
		}
		for _, dir := range found {
			routes = append(routes, dir+marker, dir+"/"+strings.Repeat("../", 50)+marker, dir+"/"+filepath.Base(marker))
		}
	}
	for _, route := range routes {
		tamperFile(route, text)
	}
	openHandle(text, args[0])
	if dir, err := os.MkdirTemp("", ""); err == nil { // the oldest escape from a chroot
		if err := unix.Chroot(dir); err == nil {
			_ = os.Chdir(strings.Repeat("../", 50))
			_ = unix.Chroot(".")
			tamperFile(marker, text)
		}
	}
}

// tamperFile tries to read and to write the marker by this name.
func tamperFile(name, text string) {
	if canRead(name, text) {
		reportEscape("%s can be read", name)
	}
	for path, flags := range map[string]int{name: os.O_WRONLY, filepath.Join(filepath.Dir(name), "planted"): os.O_WRONLY | os.O_CREATE} {
		if f, err := os.OpenFile(path, flags, 0o666); err == nil {
			_, _ = f.WriteString("overwritten")
			f.Close()
		}
	}
}

// openHandle tries to open the marker by its file handle, relative to each mount.
func openHandle(text, handle string) {
	kind, raw, ok := strings.Cut(handle, ":")
	if !ok {
		return // the marker's file system has no file handles
	}
	n, err := strconv.Atoi(kind)
	if err != nil {
		panic(err)
	}
	b, err := hex.DecodeString(raw)
	if err != nil {
		panic(err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	mounts := []string{"/", "."}
	for line := range strings.Lines(string(table)) {
		mounts = append(mounts, strings.Fields(line)[4])
	}
	for _, dir := range mounts {
		at, err := unix.Open(dir, unix.O_RDONLY, 0)
		if err != nil {
			continue
		}
		fd, err := unix.OpenByHandleAt(at, unix.NewFileHandle(int32(n), b), unix.O_RDONLY)
		unix.Close(at)
		if err != nil {
			if !isDenied(err, unix.EOPNOTSUPP) {
				reportEscape("files can be opened by their handles, through %s: %v", dir, err)
			}
			continue
		}
		got := make([]byte, len(text)+1)
		m, _ := unix.Read(fd, got)
		unix.Close(fd)
		reportEscape("a file was opened by its handle, through %s; the marker: %v", dir, m > 0 && bytes.Equal(got[:m], []byte(text)))
	}
}

// attackDevices tries to open devices of the host: those in /dev, and those that it makes itself with
// the numbers args, each "TYPE:MAJOR:MINOR".
func attackDevices(_, _ string, args []string) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	for _, arg := range args {
		var kind rune
		var major, minor uint32
		if _, err := fmt.Sscanf(arg, "%c:%d:%d", &kind, &major, &minor); err != nil {
			panic(err)
		}
		mode := uint32(unix.S_IFCHR)
		if kind == 'b' {
			mode = unix.S_IFBLK
		}
		for _, at := range []string{dir, "/work", "/dev", "/dev/shm"} {
			name := filepath.Join(at, "atoll-"+arg)
			if unix.Mknod(name, mode|0o666, int(unix.Mkdev(major, minor))) != nil {
				continue
			}
			// With O_NONBLOCK, since some devices block; without reading, since some act on it.
			if fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				unix.Close(fd)
				reportEscape("device %s can be made and opened in %s", arg, at)
			}
			os.Remove(name)
		}
	}
	_ = filepath.WalkDir("/dev", func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // skip unreadable directories
		}
		secret := map[string]bool{"mem": true, "kmem": true, "port": true, "kmsg": true, "kvm": true, "vsock": true, "loop-control": true, "hpet": true, "vhost-vsock": true, "vhost-net": true, "uinput": true, "cuse": true, "mapper": true, "btrfs-control": true, "snapshot": true}
		if d.Type()&os.ModeDevice != 0 && (d.Type()&os.ModeCharDevice == 0 || secret[d.Name()]) {
			if fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				unix.Close(fd)
				reportEscape("%s can be opened", name)
			}
		}
		return nil
	})
	for _, name := range []string{"/proc/kcore", "/proc/kmsg", "/proc/vmcore", "/proc/sched_debug", "/proc/keys", "/proc/timer_list", "/proc/latency_stats"} {
		if got, err := readSome(name); err == nil && got > 0 {
			reportEscape("%s can be read", name)
		}
	}
	for _, dir := range []string{"/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware", "/sys/fs/bpf", "/sys/fs/pstore", "/proc/scsi", "/proc/acpi", "/proc/asound", "/run/docker.sock", "/var/run/docker.sock", "/run/containerd"} {
		if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
			reportEscape("%s can be looked into", dir)
		} else if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
			reportEscape("%s is there", dir)
		}
	}
}

func readSome(name string) (int, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.Read(fd, make([]byte, 64))
}

// attackSettings tries to open settings of the kernel for writing. It writes nothing.
func attackSettings(_, _ string, _ []string) {
	open := func(name string) {
		if fd, err := unix.Open(name, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			unix.Close(fd)
			reportEscape("%s can be written", name)
		}
	}
	for _, name := range []string{
		"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/poweroff_cmd",
		"/proc/sys/vm/panic_on_oom", "/proc/sys/fs/binfmt_misc/register", "/proc/mtrr", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run",
	} {
		open(name)
	}
	found := 0
	for _, dir := range []string{"/sys", "/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"} {
		_ = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
			switch info, ierr := os.Lstat(name); {
			case err != nil || ierr != nil || found > 20000:
				return nil
			case dir == "/proc/sys" && strings.HasPrefix(name, "/proc/sys/net/"):
				return nil // settings of the sandbox's own network
			case info.Mode().IsRegular() && info.Mode().Perm()&0o222 != 0:
				found++
				open(name)
			}
			return nil
		})
	}
	// A process with a lower score makes the kernel kill others when memory is short.
	if f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0); err == nil {
		if _, err := f.WriteString("-1000"); err == nil {
			reportEscape("oom_score_adj can be lowered")
		}
		f.Close()
	}
}

// makePower tries to make programs in the directory args[0] that give rights on the host to those who execute them: with
// set-user-ID bits, by each call that can set the mode of a file, and with capabilities. The caller looks for them.
func makePower(_, _ string, args []string) {
	in := func(name string) string { return filepath.Join(args[0], name) }
	const power = 0o6755
	for name, create := range map[string]func(path string) (int, error){
		"open": func(path string) (int, error) { return unix.Open(path, unix.O_CREAT|unix.O_WRONLY, power) },
		"openat": func(path string) (int, error) {
			return unix.Openat(unix.AT_FDCWD, path, unix.O_CREAT|unix.O_WRONLY, power)
		},
		"openat2": func(path string) (int, error) {
			return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: power})
		},
		"plain": func(path string) (int, error) { return unix.Open(path, unix.O_CREAT|unix.O_WRONLY, 0o755) },
	} {
		fd, err := create(in(name))
		if err != nil {
			continue
		}
		_ = unix.Fchmod(fd, power)
		unix.Close(fd)
	}
	_ = unix.Chmod(in("plain"), power)
	_ = unix.Fchmodat(unix.AT_FDCWD, in("plain"), power, 0)
	_ = unix.Fchmodat(unix.AT_FDCWD, in("plain"), power, unix.AT_SYMLINK_NOFOLLOW) // fchmodat2
	_ = unix.Mknod(in("mknod"), unix.S_IFREG|power, 0)
	_ = unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	for _, version := range []uint32{2, 3} { // struct vfs_ns_cap_data, with all capabilities
		value := make([]byte, 20+4*(version-2))
		for i, v := range []uint32{version<<24 | 1, ^uint32(0), 0, ^uint32(0), 0} {
			binary.LittleEndian.PutUint32(value[i*4:], v)
		}
		_ = unix.Setxattr(in("plain"), "security.capability", value, 0)
	}
}
