package usernet

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/seed46cd37a8/atoll"
)

// A sandbox finds loopback and one interface, with addresses and routes.
func TestNamespace(t *testing.T) {
	for _, device := range []Device{DeviceTAP, DevicePacket} {
		t.Run(string(device), func(t *testing.T) {
			ns, err := NewNamespace(NamespaceOptions{Device: device})
			if errors.Is(err, atoll.ErrUnavailable) && os.Getenv("CI") == "" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			defer ns.Link().Close()
			var names, addrs []string
			var kind string
			routes := 0
			err = ns.do(func() error {
				links, err := netlink.LinkList()
				if err != nil {
					return err
				}
				for _, l := range links {
					names = append(names, l.Attrs().Name)
					kind = l.Type()
				}
				list, err := net.InterfaceAddrs()
				for _, a := range list {
					if !strings.HasPrefix(a.String(), "fe80::") {
						addrs = append(addrs, a.String())
					}
				}
				if err != nil {
					return err
				}
				for _, to := range []string{"1.2.3.4", "2606:4700::1"} {
					if r, err := netlink.RouteGet(net.ParseIP(to)); err == nil && len(r) == 1 && r[0].Gw != nil {
						routes++
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(names, " "); got != "lo eth0" {
				t.Errorf("interfaces: got %s, want lo eth0", got)
			}
			if want := map[Device]string{DeviceTAP: "tuntap", DevicePacket: "veth"}[device]; kind != want {
				t.Errorf("%s is a %s, want a %s", Interface, kind, want)
			}
			sort.Strings(addrs)
			want := "127.0.0.1/8 192.0.0.2/29 ::1/128 fd61:746f:6c6c::2/64"
			if got := strings.Join(addrs, " "); got != want {
				t.Errorf("addresses: got %s, want %s", got, want)
			}
			if routes != 2 {
				t.Errorf("default routes: got %d, want 2", routes)
			}
		})
	}
}

// Path leads into the namespace, which is not the caller's.
func TestNamespacePath(t *testing.T) {
	ns := need(t)
	defer ns.Link().Close()
	var inside string
	err := ns.do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(ns.Path()); err != nil || target != inside {
		t.Errorf("Path leads to %s, %v, want %s", target, err, inside)
	}
	if here, _ := os.Readlink("/proc/thread-self/ns/net"); here == inside {
		t.Errorf("the caller is in %s too", here)
	}
}

// No thread of the process stays in a namespace, the first one least of all,
// which could never leave.
func TestNamespaceLeavesNoThread(t *testing.T) {
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		need(t).Link().Close()
	}
	eventually(t, "all threads are at home", func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil || len(tasks) == 0 {
			t.Fatal(tasks, err)
		}
		for _, task := range tasks {
			if target, err := os.Readlink(task); err == nil && target != home {
				return false
			}
		}
		return true
	})
}

func TestNamespaceUnknownDevice(t *testing.T) {
	need(t).Link().Close()
	_, err := NewNamespace(NamespaceOptions{Device: "carrier pigeon"})
	if err == nil || !strings.Contains(err.Error(), "use tap or packet") {
		t.Errorf("got %v", err)
	}
}

// The data path over the device that needs no /dev/net/tun.
func TestPacketDevice(t *testing.T) {
	if testDevice != DeviceAuto {
		t.Skip("already over device", testDevice)
	}
	testDevice = DevicePacket
	defer func() { testDevice = DeviceAuto }()
	t.Run("TCPEcho", TestTCPEcho)
	t.Run("TCPBigTransfers", TestTCPBigTransfers)
	t.Run("TCPHalfClose", TestTCPHalfClose)
	t.Run("UDP", TestUDP)
	t.Run("DNS", TestDNS)
	t.Run("Close", TestCloseEndsEverything)
}

// All of it without privilege, in a user namespace of an ordinary user.
func TestRootless(t *testing.T) {
	if os.Getenv("ATOLL_TEST_ROOTLESS") != "" {
		t.Skip("this is the rootless run")
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 65534, 65534
	}
	for _, device := range []Device{DeviceAuto, DevicePacket} {
		name := string(device)
		if device == DeviceAuto {
			name = "auto"
		}
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^Test(TCP|UDP|DNS|Egress|Refusals|Thousand|Ping|Namespace)")
			cmd.Env = append(os.Environ(), "ATOLL_TEST_ROOTLESS=1", "ATOLL_TEST_DEVICE="+string(device), "TMPDIR=/tmp",
				"CI=") // a device node that only root may open is no missing part
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
				Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
			}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
				t.Skip("user namespaces are denied here:", err)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !strings.Contains(string(out), "--- PASS: TestTCPEcho") {
				t.Errorf("the rootless run did not carry traffic:\n%s", out)
			}
		})
	}
}

// Without the right to create namespaces, the error says so.
func TestNamespaceUnavailable(t *testing.T) {
	if os.Getenv("ATOLL_TEST_UNPRIVILEGED") != "" {
		_, err := NewNamespace(NamespaceOptions{})
		if !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), "user namespace") {
			t.Errorf("got %v, want unavailable, and what to do", err)
		}
		return
	}
	if os.Getuid() != 0 || os.Getenv("ATOLL_TEST_ROOTLESS") != "" {
		t.Skip("needs root to become somebody else")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNamespaceUnavailable$")
	cmd.Env = append(os.Environ(), "ATOLL_TEST_UNPRIVILEGED=1")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
