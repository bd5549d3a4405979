package guest

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// inNetwork calls f in a network namespace of its own, with a network card whose other
// end is there, too.
func inNetwork(t *testing.T, f func(t *testing.T, card netlink.Link)) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never given back: the thread ends, and with it the namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("a network namespace: %v", err)
			return
		}
		if _, err := findCard(); err == nil || !strings.Contains(err.Error(), "no network card") {
			t.Errorf("with the loopback alone: %v", err)
		}
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "card"}, PeerName: "wire"}
		if err := netlink.LinkAdd(pair); err != nil {
			t.Errorf("a network card: %v", err)
			return
		}
		for _, name := range []string{"wire", "card"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				t.Error(err)
				return
			}
			if name == "card" {
				f(t, link)
			} else if err := netlink.LinkSetUp(link); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	<-done
}

func TestNetwork(t *testing.T) {
	n := &Interface{
		Addresses: []string{"10.1.2.3/24", "fd00:1::3/64"}, Gateways: []string{"10.1.2.1", "fd00:1::1"},
		DNS: []string{"10.1.2.1", "fd00:1::1"}, MTU: 1380,
	}
	inNetwork(t, func(t *testing.T, card netlink.Link) {
		if err := n.configureCard(card); err != nil {
			t.Error(err)
			return
		}
		card, err := netlink.LinkByName("card")
		if err != nil {
			t.Error(err)
			return
		}
		if a := card.Attrs(); a.MTU != 1380 || a.RawFlags&unix.IFF_UP == 0 {
			t.Errorf("MTU %d, flags %#x; want 1380, and it up", a.MTU, a.RawFlags)
		}
		addrs, err := netlink.AddrList(card, netlink.FAMILY_ALL)
		if err != nil {
			t.Error(err)
			return
		}
		var have []string
		for _, a := range addrs {
			if a.Scope == unix.RT_SCOPE_LINK {
				continue // the kernel's own
			}
			have = append(have, a.IPNet.String())
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				t.Errorf("%s cannot be used yet: it is being looked whether somebody else has it", a.IPNet)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, n.Addresses) {
			t.Errorf("the addresses are %q, want %q", have, n.Addresses)
		}
		for i, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(card, family)
			if err != nil {
				t.Error(err)
				return
			}
			if !slices.ContainsFunc(routes, func(r netlink.Route) bool {
				if r.Dst != nil {
					if ones, _ := r.Dst.Mask.Size(); ones != 0 {
						return false
					}
				}
				return r.Gw.String() == n.Gateways[i]
			}) {
				t.Errorf("no way out by %s: %v", n.Gateways[i], routes)
			}
		}
	})
	for name, bad := range map[string]*Interface{
		"address": {Addresses: []string{"10.1.2.3"}},
		"gateway": {Addresses: []string{"10.1.2.3/24"}, Gateways: []string{"192.0.2.1"}},
	} {
		inNetwork(t, func(t *testing.T, card netlink.Link) {
			if err := bad.configureCard(card); err == nil {
				t.Errorf("a bad %s was taken", name)
			}
		})
	}
}

// The names of the machine and of its servers are files, in place of whatever the image
// has there.
func TestFilesOfNames(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.Symlink(outside, filepath.Join(root, "etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	s := &Setup{Hostname: "box", Network: &Interface{DNS: []string{"10.1.2.1", "fd00:1::1"}}}
	if err := s.writeFiles(root); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"resolv.conf": "nameserver 10.1.2.1\nnameserver fd00:1::1\n",
		"hostname":    "box\n",
		"hosts":       "127.0.0.1 localhost box\n::1 localhost box\n",
	} {
		path := filepath.Join(root, "etc", name)
		text, err := os.ReadFile(path)
		if err != nil || string(text) != want {
			t.Errorf("/etc/%s is %q, %v; want %q", name, text, err, want)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o644 {
			t.Errorf("/etc/%s: %v, %v", name, info.Mode(), err)
		}
	}
	if _, err := os.Stat(outside); err == nil {
		t.Error("the image's link was followed")
	}
}

// A module gets its parameters from the kernel's command line, however they are spelt.
func TestParameters(t *testing.T) {
	const cmdline = "quiet virtio_blk.queues=1 virtio-blk.poll=2 virtio_blk. virtio_blkish.x=3\n"
	if got := moduleParameters("/lib/modules/6.1/kernel/virtio_blk.ko", cmdline); got != "queues=1 poll=2" {
		t.Errorf("virtio_blk gets %q", got)
	}
	if got := moduleParameters("/lib/modules/6.1/kernel/vsock.ko", cmdline); got != "" {
		t.Errorf("vsock gets %q", got)
	}
}
