//go:build linux

package keeper

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
	"github.com/seed46cd37a8/atoll/provider/native/internal/vfork"
)

// namespaces lists the namespaces of a sandbox, besides its user, network and time namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// oomScore is the oom_score_adj of the processes inside, in thousandths of the available memory: the kernel ends them before the
// supervisor.
const oomScore = "500"

// A box describes the walls around a first process.
type box struct {
	ids      *ids
	group    *cgroup.Inside
	network  *os.File // the network namespace
	root     *os.File // the directory that becomes the root
	hostname string
	files    rlimit
	procs    rlimit // processes; zero for none
	cpus     *unix.CPUSet
	uptime   int64    // seconds that have passed before the sandbox starts
	shared   uint64   // the size of /dev/shm, in bytes
	groups   bool     // the sandbox has groups besides the first
	ruleset  *os.File // of Landlock; nil without
	filters  [][]unix.SockFilter
	user     []userLimit // of all users inside together
	masked   []string    // paths in /proc that are empty inside
	fixed    []string    // paths in /proc that are read-only inside
	covers   []string    // files in /proc that the sandbox has in place of the kernel's
	nested   bool        // programs may make namespaces and mounts
}

// A userLimit is a file in /proc/sys/user with its value.
type userLimit struct {
	name string
	most int
}

type rlimit struct{ soft, hard uint64 }

// capabilities lists the rights of root inside, over what belongs to the sandbox. Package managers and daemons need them to change owners
// and users of files; users other than root have none. CAP_SETFCAP is not among them: on a directory of the host, a program with
// capabilities would have them on the host, too.
var capabilities = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SETUID,
}

// startProcess starts the first process of a sandbox, with the other ends of line. Call it on the main thread: the kernel kills the
// process when the thread that started it ends.
func (b *box) startProcess(line *pid1.Line) (pid int, err error) {
	s, err := vfork.New()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	program, err := initProgram()
	if err != nil {
		return 0, err
	}
	sb := &scriptBuilder{Script: s}
	defer sb.closeFiles()
	sb.enterNamespaces(b)
	sb.mountSystem(b)
	sb.changeRoot(b)
	sb.setLimits(b)
	if err := sb.passFiles(line); err != nil {
		return 0, err
	}
	sb.dropRights(b)
	s.Do("program", unix.SYS_EXECVEAT, uint64(program.Fd()), s.AddText(""), s.AddTexts([]string{"atoll-init"}), s.AddTexts(nil), unix.AT_EMPTY_PATH)
	err = b.group.Clone(func(dir *os.File) (err error) {
		pid, err = s.Run(dir)
		return err
	})
	runtime.KeepAlive(b)
	if err != nil && pid > 0 { // this thread could not return to its own group
		_ = unix.Kill(pid, unix.SIGKILL)
		waitProcess(pid)
		return 0, err
	}
	return pid, err
}

// A scriptBuilder builds the script of a first process.
type scriptBuilder struct {
	*vfork.Script
	opened []*os.File
}

func (s *scriptBuilder) closeFiles() {
	for _, f := range s.opened {
		_ = f.Close()
	}
}

// cwd is AT_FDCWD.
const cwd = 1<<64 - 100

// writeFile adds the calls that write a file: as descriptor 0, which nobody needs.
func (s *scriptBuilder) writeFile(name, path, text string) {
	s.Try(unix.SYS_CLOSE, 0)
	s.Do(name, unix.SYS_OPENAT, cwd, s.AddText(path), unix.O_WRONLY)
	s.Do(name, unix.SYS_WRITE, 0, s.AddBytes([]byte(text)), uint64(len(text)))
}

func (s *scriptBuilder) addMount(source, target, kind string, flags uintptr, options string) {
	s.Do("mount "+target, unix.SYS_MOUNT, s.AddText(source), s.AddText(target), s.AddText(kind), uint64(flags), s.AddText(options))
}

// enterNamespaces adds the calls that enter the namespaces. The network namespace belongs to this process's user namespace, so that
// root inside cannot change it.
func (s *scriptBuilder) enterNamespaces(b *box) {
	s.Do("signals", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uint64(unix.SIGKILL), 0, 0, 0)
	s.writeFile("priority", "/proc/self/oom_score_adj", oomScore) // with the rights of this process, so that nobody inside can lower it
	s.Do("network namespace", unix.SYS_SETNS, uint64(b.network.Fd()), unix.CLONE_NEWNET)
	s.Do("user namespace", unix.SYS_SETNS, uint64(b.ids.namespace.Fd()), unix.CLONE_NEWUSER)
	s.Do("time namespace", unix.SYS_UNSHARE, unix.CLONE_NEWTIME)
	s.writeFile("uptime", "/proc/self/timens_offsets", fmt.Sprintf("boottime -%d 0", b.uptime))
	if b.groups {
		s.Do("groups", unix.SYS_SETGROUPS, 0, 0)
	}
	s.Do("group", unix.SYS_SETRESGID, 0, 0, 0)
	s.Do("user", unix.SYS_SETRESUID, 0, 0, 0)
	s.Do("directory", unix.SYS_FCHDIR, uint64(b.root.Fd())) // which is then that of the new mount namespace
	s.Clone("namespaces", namespaces)
	s.Do("session", unix.SYS_SETSID)
}

// mountSystem adds the calls that mount what belongs to the namespaces.
func (s *scriptBuilder) mountSystem(b *box) {
	const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	s.addMount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	// A copy of the tree of mounts at the root, which is not locked, over itself.
	here := s.AddText(".")
	s.Try(unix.SYS_CLOSE, 0)
	s.Do("copy of the root", unix.SYS_OPEN_TREE, cwd, here, unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)
	s.Do("copy of the root", unix.SYS_MOVE_MOUNT, 0, s.AddText(""), cwd, here, unix.MOVE_MOUNT_F_EMPTY_PATH)
	s.Do("copy of the root", unix.SYS_FCHDIR, 0)
	s.coverProc(b.covers)
	options := "newinstance,ptmxmode=0666,mode=0620"
	if b.groups {
		options += ",gid=5"
	}
	s.addMount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options)
	s.addMount("mqueue", "dev/mqueue", "mqueue", plain, "")
	s.addMount("shm", "dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%d", b.shared))
	if b.nested {
		s.addMount("proc", nestedProc, "proc", plain, "")
	}
	for _, name := range b.fixed {
		s.addMount("proc/"+name, "proc/"+name, "", unix.MS_BIND|unix.MS_REC, "")
		s.addMount("", "proc/"+name, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|plain, "")
	}
	for _, name := range b.masked {
		if isDir("/proc/" + name) {
			s.addMount("none", "proc/"+name, "tmpfs", plain|unix.MS_RDONLY, "size=0,nr_inodes=1,mode=0555")
		} else {
			s.addMount("dev/null", "proc/"+name, "", unix.MS_BIND, "")
		}
	}
}

// changeRoot adds the calls after which nothing of the host can be reached.
func (s *scriptBuilder) changeRoot(b *box) {
	for _, l := range b.user {
		s.writeFile("limit of the user namespace", "/proc/sys/user/"+l.name, strconv.Itoa(l.most))
	}
	here := s.AddText(".")
	s.Do("root", unix.SYS_PIVOT_ROOT, here, here)
	s.Do("old root", unix.SYS_UMOUNT2, here, unix.MNT_DETACH)
	s.Do("directory", unix.SYS_CHDIR, s.AddText("/"))
	s.Do("host name", unix.SYS_SETHOSTNAME, s.AddBytes([]byte(b.hostname)), uint64(len(b.hostname)))
}

// setLimits adds the calls that set limits of processes.
func (s *scriptBuilder) setLimits(b *box) {
	limit := func(name string, resource int, l rlimit) {
		data := binary.LittleEndian.AppendUint64(nil, l.soft)
		s.Do(name, unix.SYS_PRLIMIT64, 0, uint64(resource), s.AddBytes(binary.LittleEndian.AppendUint64(data, l.hard)), 0)
	}
	limit("core files", unix.RLIMIT_CORE, rlimit{1, 1}) // with 0, the kernel would still run a program of the host for each crash
	limit("open files", unix.RLIMIT_NOFILE, b.files)
	if b.procs.hard > 0 {
		limit("processes", unix.RLIMIT_NPROC, b.procs)
	}
	if b.cpus != nil {
		data := unsafe.Slice((*byte)(unsafe.Pointer(b.cpus)), unsafe.Sizeof(*b.cpus))
		s.Do("processors", unix.SYS_SCHED_SETAFFINITY, 0, uint64(len(data)), s.AddBytes(data))
	}
}

// passFiles adds the calls that give the first process its descriptors. All others are closed when it is executed.
func (s *scriptBuilder) passFiles(line *pid1.Line) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	s.opened = append(s.opened, null)
	for to, f := range map[int]*os.File{0: null, pid1.SocketFD: line.Socket, pid1.MemoryFD: line.Memory} {
		// From high descriptors, which none of these calls closes.
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, lowestFD)
		if err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		s.opened = append(s.opened, os.NewFile(uintptr(fd), f.Name()))
		s.Do("descriptors", unix.SYS_DUP3, uint64(fd), uint64(to), 0)
	}
	for _, to := range []uint64{1, 2} {
		s.Do("descriptors", unix.SYS_DUP3, 0, to, 0)
	}
	return nil
}

// dropRights adds the calls after which the process has only the rights of a sandbox. Later calls must pass the filter.
func (s *scriptBuilder) dropRights(b *box) {
	var allowed uint64
	for _, c := range capabilities {
		allowed |= 1 << c
	}
	if b.nested {
		allowed |= 1 << unix.CAP_SETFCAP // without it, root gets no user namespace that has root
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if allowed&(1<<c) == 0 {
			s.Try(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uint64(c), 0, 0, 0) // fails for those that the kernel does not know
		}
	}
	header := binary.LittleEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3)
	var sets []byte
	for _, half := range []uint64{allowed & 0xffffffff, allowed >> 32} {
		sets = binary.LittleEndian.AppendUint32(sets, uint32(half)) // effective
		sets = binary.LittleEndian.AppendUint32(sets, uint32(half)) // permitted
		sets = binary.LittleEndian.AppendUint32(sets, 0)            // inheritable
	}
	s.Do("capabilities", unix.SYS_CAPSET, s.AddBytes(append(header, 0, 0, 0, 0)), s.AddBytes(sets))
	s.Do("signals", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uint64(unix.SIGKILL), 0, 0, 0) // a change of rights has cleared it
	s.Do("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if b.ruleset != nil {
		s.Do("Landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, uint64(b.ruleset.Fd()), 0)
	}
	for _, filter := range b.filters {
		program := make([]byte, 16) // struct sock_fprog
		binary.LittleEndian.PutUint16(program, uint16(len(filter)))
		binary.LittleEndian.PutUint64(program[8:], uint64(uintptr(unsafe.Pointer(&filter[0]))))
		s.Do("filter of system calls", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, s.AddBytes(program))
	}
}
