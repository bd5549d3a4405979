//go:build linux

// Command init is the first process of machines in tests: it loads the modules of its
// initrd, mounts the root disk, prints what is on it, and powers off.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("init: failed:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func run() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	fmt.Println("init: up at", uptime())
	list, err := os.Open("/lib/modules/atoll.load")
	if err != nil {
		return err
	}
	n := 0
	for lines := bufio.NewScanner(list); lines.Scan(); n++ {
		f, err := os.Open(lines.Text())
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		f.Close()
	}
	fmt.Println("init: modules", n, "at", uptime())
	said, err := exec.Command("/sbin/mke2fs", "-V").CombinedOutput()
	if err != nil {
		return fmt.Errorf("mke2fs: %w: %s", err, said)
	}
	first, _, _ := strings.Cut(string(said), "\n")
	fmt.Println("init:", first)
	disk, err := find("root")
	if err != nil {
		return err
	}
	if err := unix.Mount(disk, "/newroot", "squashfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s: %w", disk, err)
	}
	for _, name := range os.Args[1:] { // of the kernel's command line, after --
		fi, err := os.Lstat("/newroot" + name)
		if err != nil {
			return err
		}
		fmt.Println("init: file", name, fi.Mode(), fi.Size())
	}
	text, err := os.ReadFile("/newroot/etc/os-release")
	if err == nil {
		first, _, _ := strings.Cut(string(text), "\n")
		fmt.Println("init: root", first, "at", uptime())
	} else {
		fmt.Println("init: root without a name at", uptime())
	}
	return nil
}

// find waits for the disk with that serial.
func find(serial string) (string, error) {
	for range 500 {
		files, _ := filepath.Glob("/sys/block/*/serial")
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(f)), nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "", fmt.Errorf("no disk has the serial %s", serial)
}

func uptime() string {
	b, _ := os.ReadFile("/proc/uptime")
	text, _, _ := strings.Cut(string(b), " ")
	return text
}
