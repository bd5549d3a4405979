package guest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/inroot"
	"github.com/seed46cd37a8/atoll/internal/trust"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A systemMount is a mount that every machine has.
type systemMount struct {
	kind, target string
	flags        uintptr
	data         string
}

// kernelMounts lists the mounts of the kernel's own file systems.
var kernelMounts = []systemMount{
	{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
	{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755,size=5%"}, // of the memory, which disk limits do not cover
	{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
}

// mountBelow mounts m below a root.
func (m systemMount) mountBelow(root string) error {
	target := root + m.target
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	err := unix.Mount(m.kind, target, m.kind, m.flags, m.data)
	if err != nil && !errors.Is(err, unix.EBUSY) { // the kernel may have mounted it
		return fmt.Errorf("mount %s on %s: %w", m.kind, target, err)
	}
	return nil
}

// loadModules loads the kernel's modules from the initial file system, if there are any, with their
// parameters from the kernel's command line. Modules without hardware do no harm.
func loadModules() error {
	list, err := os.Open(vm.ModuleList)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer list.Close()
	cmdline := kernelCmdline()
	for lines := bufio.NewScanner(list); lines.Scan(); {
		path := lines.Text()
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(vm.ModuleList), path)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), moduleParameters(path, cmdline), 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("load %s: %w", path, err)
		}
	}
	return nil
}

// moduleParameters returns the parameters for the module in a file, from the kernel's command line.
func moduleParameters(path, cmdline string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	prefix := strings.ReplaceAll(name, "-", "_") + "."
	var all []string
	for _, word := range strings.Fields(cmdline) {
		if p, ok := strings.CutPrefix(strings.ReplaceAll(word, "-", "_"), prefix); ok && p != "" {
			all = append(all, word[len(prefix):])
		}
	}
	return strings.Join(all, " ")
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// The directories in which the root file system is assembled before it becomes the root.
const (
	lowerDir  = "/mnt/lower"
	upperDir  = "/mnt/upper"
	newRoot   = "/mnt/root"
	guestFile = "/init"
)

// applySetup configures the machine according to s, except for processes.
func (s *Setup) applySetup() error {
	if s.Time > 0 {
		if err := setTime(s.Time); err != nil {
			return err
		}
	}
	if err := addEntropy(s.Entropy); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("hostname %q: %w", s.Hostname, err)
	}
	if err := s.Root.mountRoot(); err != nil {
		return err
	}
	for _, m := range kernelMounts {
		if m.target == "/tmp" { // that of the root file system is enough
			continue
		}
		if err := m.mountBelow(newRoot); err != nil {
			return err
		}
	}
	if err := s.installTrust(newRoot); err != nil { // before the mounts, whose files are not the sandbox's
		return err
	}
	for _, m := range s.Mounts {
		if err := m.mountDir(); err != nil {
			return atoll.Errorf("mount", m.Target, atoll.ErrInvalid, "mount on %s: %w", m.Target, err)
		}
	}
	if s.Init != nil {
		if err := mountInit(s.Init); err != nil {
			return err
		}
	}
	if err := s.writeFiles(newRoot); err != nil {
		return err
	}
	if err := s.Root.makeReadOnly(); err != nil {
		return fmt.Errorf("make the root file system read-only: %w", err)
	}
	if s.Network != nil {
		if err := s.Network.bringUp(); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	if err := limitProcesses(s.Processes); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return enterRoot(newRoot)
}

func setTime(nanoseconds int64) error {
	now := unix.NsecToTimeval(nanoseconds)
	if err := unix.Settimeofday(&now); err != nil {
		return fmt.Errorf("set the time: %w", err)
	}
	return nil
}

// limitProcesses limits the kernel to n threads more than there are.
func limitProcesses(n int) error {
	if n <= 0 {
		return nil
	}
	text, err := os.ReadFile("/proc/loadavg") // "0.00 0.00 0.00 1/73 142": the fourth field has the number of threads
	if err != nil {
		return err
	}
	var now int
	if f := strings.Fields(string(text)); len(f) > 3 {
		_, all, _ := strings.Cut(f[3], "/")
		now, err = strconv.Atoi(all)
	}
	if err != nil || now == 0 {
		return fmt.Errorf("/proc/loadavg says %q", text)
	}
	return os.WriteFile("/proc/sys/kernel/threads-max", []byte(strconv.Itoa(now+Threads+n)), 0)
}

// writeFiles writes the files in /etc that programs need into a root file system.
func (s *Setup) writeFiles(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll("etc", 0o755); err != nil {
		return nil // a read-only root stays as it is
	}
	texts := map[string]string{
		"etc/hostname": s.Hostname + "\n",
		"etc/hosts":    "127.0.0.1 localhost " + s.Hostname + "\n::1 localhost " + s.Hostname + "\n",
	}
	if s.Network != nil {
		var text strings.Builder
		for _, server := range s.Network.DNS {
			text.WriteString("nameserver " + server + "\n")
		}
		texts["etc/resolv.conf"] = text.String()
	}
	for name, text := range texts {
		if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
			_ = root.Remove(name) // the target of a link may be missing
		}
		if err := root.WriteFile(name, []byte(text), 0o644); err != nil && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("write /%s: %w", name, err)
		}
	}
	return nil
}

// installTrust makes programs in a root file system trust s.Trust.
func (s *Setup) installTrust(dir string) error {
	if len(s.Trust) == 0 {
		return nil
	}
	vars, _, err := trust.Install(inroot.Files{Root: dir}, s.Trust, s.Config.Env)
	s.Config.Env = append(vars, s.Config.Env...)
	return err
}

// mountRoot assembles the root file system at newRoot.
func (r *Root) mountRoot() error {
	for _, dir := range []string{lowerDir, upperDir, newRoot} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	device, err := findDisk(r.Disk)
	if err != nil {
		return err
	}
	kind, err := kindOfDisk(device)
	if err != nil {
		return err
	}
	if err := unix.Mount(device, lowerDir, kind, unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount disk %s, a %s: %w", r.Disk, kind, err)
	}
	if r.Upper == "" {
		err = unix.Mount("tmpfs", upperDir, "tmpfs", unix.MS_NOSUID, "mode=0755")
	} else {
		err = mountDisk(r.Upper, upperDir, 0)
	}
	if err != nil {
		return fmt.Errorf("mount disk %q: %w", r.Upper, err)
	}
	upper, work := upperDir+"/upper", upperDir+"/work"
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return unix.Mount("overlay", newRoot, "overlay", 0, "lowerdir="+lowerDir+",upperdir="+upper+",workdir="+work)
}

// makeReadOnly makes the root file system read-only if it is Fixed.
func (r *Root) makeReadOnly() error {
	if !r.Fixed {
		return nil
	}
	return unix.Mount("", newRoot, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func (m *MachineDir) mountDir() error {
	at, err := inroot.Open(newRoot, m.Target, m.File)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	target := fmt.Sprintf("/proc/self/fd/%d", at)
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if m.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	switch {
	case m.Disk != "":
		return mountDisk(m.Disk, target, flags)
	case m.File:
		return mountFile(m.Share, target, flags)
	case m.Share != "":
		return unix.Mount(m.Share, target, "virtiofs", flags, "")
	case m.Bind != "":
		return bindMount(m.Bind, target)
	}
	return unix.Mount("tmpfs", target, "tmpfs", flags, fmt.Sprintf("mode=1777,size=%d", m.Size))
}

// bindMount makes a directory below the new root appear at target, too.
func bindMount(dir, target string) error {
	from, err := inroot.Open(newRoot, dir, false)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", from), target, "", unix.MS_BIND|unix.MS_REC, "")
}

// mountDisk mounts an ext4, and formats the disk first if it is empty.
func mountDisk(id, target string, flags uintptr) error {
	device, err := findDisk(id)
	if err != nil {
		return err
	}
	kind, err := kindOfDisk(device)
	if errors.Is(err, errEmpty) {
		err = formatDisk(device)
		kind = "ext4"
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(device, target, kind, flags|unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("a %s: %w", kind, err)
	}
	return nil
}

// diskTimeout bounds how long a disk may take to appear.
const diskTimeout = 5 * time.Second

// findDisk returns the device of a disk.
func findDisk(id string) (string, error) {
	named := vm.NamedDisk(kernelCmdline(), id)
	for end := time.Now().Add(diskTimeout); ; time.Sleep(5 * time.Millisecond) {
		names, err := filepath.Glob("/sys/block/*/serial")
		if err != nil {
			return "", err
		}
		for _, path := range names {
			text, err := os.ReadFile(path)
			if err == nil && strings.TrimSpace(string(text)) == id {
				return "/dev/" + filepath.Base(filepath.Dir(path)), nil
			}
		}
		if _, err := os.Stat(named); named != "" && err == nil {
			return named, nil
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the machine has no disk %q", id)
		}
	}
}

// errEmpty means that a disk holds no data.
var errEmpty = errors.New("the disk is empty")

// kindOfDisk returns the kind of the file system on a disk, by its first bytes.
func kindOfDisk(device string) (string, error) {
	f, err := os.Open(device)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 4096)
	if _, err := f.ReadAt(head, 0); err != nil {
		return "", fmt.Errorf("read %s: %w", device, err)
	}
	switch {
	case bytes.HasPrefix(head, []byte("hsqs")):
		return "squashfs", nil
	case binary.LittleEndian.Uint32(head[1024:]) == 0xe0f5e1e2:
		return "erofs", nil
	case binary.LittleEndian.Uint16(head[1024+56:]) == 0xef53:
		return "ext4", nil
	case len(bytes.Trim(head, "\x00")) == 0:
		return "", errEmpty
	}
	return "", fmt.Errorf("disk %s has no squashfs, erofs or ext4", device)
}

// formatDisk creates an ext4 on a device, with the program in the initial file system.
func formatDisk(device string) error {
	out, err := exec.Command("/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", device).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a file system: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// enterRoot makes root the root of this process and of all later ones, and removes the initial file
// system, to free its memory.
func enterRoot(root string) error {
	for _, name := range []string{"/lib", "/sbin", "/usr", guestFile} { // a running program stays
		_ = os.RemoveAll(name)
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("enter the root file system: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// addEntropy adds entropy to the kernel's pool, and counts it.
func addEntropy(entropy []byte) error {
	if len(entropy) == 0 {
		return nil
	}
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	request := make([]byte, 8, 8+len(entropy)) // struct rand_pool_info: bits, bytes, and the entropy
	binary.NativeEndian.PutUint32(request, uint32(8*len(entropy)))
	binary.NativeEndian.PutUint32(request[4:], uint32(len(entropy)))
	request = append(request, entropy...)
	const addEntropy, reseed = 0x40085203, 0x5207 // RNDADDENTROPY, RNDRESEEDCRNG of linux/random.h
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), addEntropy, uintptr(unsafe.Pointer(&request[0]))); no != 0 {
		return no
	}
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), reseed, 0); no != 0 {
		return no
	}
	return nil
}

// bringUp configures the network card.
func (n *Interface) bringUp() error {
	card, err := findCard()
	if err != nil {
		return err
	}
	return n.configureCard(card)
}

// configureCard gives a network card its addresses, brings it up, and sets the routes.
func (n *Interface) configureCard(card netlink.Link) error {
	if n.MTU != 0 {
		if err := netlink.LinkSetMTU(card, n.MTU); err != nil {
			return err
		}
	}
	for _, text := range n.Addresses {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(card, addr); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	if err := netlink.LinkSetUp(card); err != nil {
		return err
	}
	for _, text := range n.Gateways {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: card.Attrs().Index, Gw: net.ParseIP(text)}); err != nil {
			return fmt.Errorf("gateway %s: %w", text, err)
		}
	}
	return nil
}

// findCard returns the first network card.
func findCard() (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 && l.Type() == "device" {
			return l, nil
		}
	}
	return nil, errors.New("the machine has no network card")
}

// settleDisks writes everything to the disks, and makes all file systems read-only.
func settleDisks() {
	unix.Sync()
	if f, err := os.OpenFile("/proc/sysrq-trigger", os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString("u") // all file systems become read-only
		_ = f.Close()
	}
	unix.Sync()
}

// resizeExt4 grows the ext4 of an open file to that many blocks, unless it has them.
func resizeExt4(fd int, blocks uint64) error {
	const resize = 0x40086610 // EXT4_IOC_RESIZE_FS of fs/ext4/ext4.h
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), resize, uintptr(unsafe.Pointer(&blocks))); no != 0 {
		return no
	}
	return nil
}
