package bundle

import (
	"cmp"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A Recipe says from what to build a bundle. The zero value is Debian with the programs
// that most agents need.
type Recipe struct {
	// Name is the name of the bundle in the store. Empty means "debian", "docker",
	// "docker-wsl" for an archive, or the name of Image.
	Name string
	// Image is an OCI image, as package image spells it, that becomes the root disk.
	Image string
	// Pull says when to ask the registry of Image; empty means the policy of the store of images.
	Pull atoll.PullPolicy
	// Packages replaces DefaultPackages. Build installs them on Debian's smallest
	// system, which becomes the root disk.
	Packages []string
	// Docker makes the root disk of a machine that runs a Docker Engine: with its
	// packages, modules of the kernel, and an Init that starts it.
	Docker bool
	// Archive makes a root archive with the guest's program in it, and nothing else, for
	// hypervisors that bring a kernel. It requires Docker.
	Archive bool
	// Suite of Debian; empty means DefaultSuite.
	Suite string
	// Mirror of Debian; empty means deb.debian.org.
	Mirror string
	// Kernel is a file: a Debian package with a kernel, or a kernel that needs no
	// modules. Empty means the one of KernelPackage.
	Kernel string
	// Modules lists modules to load besides those that every guest needs.
	Modules []string
	// Compress makes the initrd smaller, and slower to boot.
	Compress bool
	// Fresh installs the packages anew instead of reusing an earlier build, as newer
	// versions may exist.
	Fresh bool
}

// Defaults of a Recipe.
const (
	DefaultSuite = "bookworm"
	// KernelPackage is the prefix of Debian's package that depends on the newest
	// kernel: "amd64" or "arm64" follows.
	KernelPackage = "linux-image-cloud-"
)

// DefaultPackages lists the packages of a Recipe without an image, packages or Docker.
var DefaultPackages = []string{"bash", "ca-certificates", "coreutils", "curl", "git", "procps", "python3"}

// dockerPackages lists the packages of Recipe.Docker.
var dockerPackages = []string{"bash", "ca-certificates", "coreutils", "docker.io", "e2fsprogs", "iproute2", "iptables", "kmod", "procps"}

// dockerInit starts the engine, on a disk of its own that outlives the machine.
var dockerInit = &vm.Init{
	Disks:   []vm.InitDisk{{ID: DataDisk, Format: "ext4", Label: "docker-data", Mount: "/var/lib/docker"}},
	Start:   []vm.InitProcess{{Args: []string{"/usr/sbin/dockerd", "--data-root", "/var/lib/docker", "--host", "unix://" + dockerSocket}}},
	Bridges: []vm.InitBridge{{Port: vm.PortDocker, Unix: dockerSocket}},
}

// DataDisk is the ID of the disk on which a Docker Engine keeps its data.
const DataDisk = "data"

const dockerSocket = "/var/run/docker.sock"

// guestModules lists the modules that a guest needs on any hypervisor; '?' marks modules
// that not every kernel has.
var guestModules = []string{
	"virtio", "virtio_pci", "virtio_mmio?", "virtio_blk", "virtio_net", "virtio_console", "virtio_rng?",
	"vsock", "vmw_vsock_virtio_transport", "virtio_balloon?",
	"squashfs", "overlay", "ext4", "fuse", "virtiofs?",
}

// dockerModules lists the modules that a Docker Engine needs in addition.
var dockerModules = []string{
	"bridge", "br_netfilter", "veth", "ip_tables", "iptable_filter", "iptable_nat", "iptable_mangle?", "nf_tables?", "nft_compat?", "nft_chain_nat?",
	"xt_addrtype", "xt_conntrack", "xt_MASQUERADE", "xt_nat?", "xt_tcpudp", "xt_comment?", "xt_mark?", "xt_multiport?", "tun?", "dummy?",
}

var (
	packageForm = lazyRegexp(`^[a-z0-9][a-z0-9.+-]+$`)
	suiteForm   = lazyRegexp(`^[a-z0-9][a-z0-9.-]*$`)
	mirrorForm  = lazyRegexp(`^(https?|file)://[^\s]+$`)
	moduleForm  = lazyRegexp(`^[A-Za-z0-9_-]+\??$`)
)

// withDefaults checks r and returns it with default values for empty fields.
func (r Recipe) withDefaults() (Recipe, error) {
	bad := func(format string, args ...any) (Recipe, error) {
		return r, atoll.Errorf("build", r.Name, atoll.ErrInvalid, format, args...)
	}
	switch {
	case r.Image != "" && (len(r.Packages) > 0 || r.Docker || r.Suite != "" || r.Mirror != ""):
		return bad("a root disk is made from an image or from Debian's packages, not both")
	case r.Archive && !r.Docker:
		return bad("a root archive is for a machine that runs a Docker Engine: add --docker")
	case r.Archive && (r.Kernel != "" || len(r.Modules) > 0 || r.Compress):
		return bad("a root archive has no kernel, modules or initrd: leave out their options")
	case r.Name == "" && r.Image != "":
		r.Name = r.Image
	case r.Name == "" && r.Archive:
		r.Name = "docker-wsl"
	case r.Name == "" && r.Docker:
		r.Name = "docker"
	case r.Name == "":
		r.Name = "debian"
	}
	if err := checkName(r.Name); err != nil {
		return r, err
	}
	if r.Image == "" {
		r.Suite = cmp.Or(r.Suite, DefaultSuite)
		extra := r.Packages
		r.Packages = slices.Clone(r.Packages)
		if r.Docker {
			r.Packages = append(r.Packages, dockerPackages...)
		} else if len(extra) == 0 {
			r.Packages = slices.Clone(DefaultPackages)
		}
		slices.Sort(r.Packages)
		r.Packages = slices.Compact(r.Packages)
		if !suiteForm().MatchString(r.Suite) {
			return bad("%q is not a suite of Debian: use a name such as %s", r.Suite, DefaultSuite)
		}
		if r.Mirror != "" && !mirrorForm().MatchString(r.Mirror) {
			return bad("%q is not a mirror: use a URL such as https://deb.debian.org/debian", r.Mirror)
		}
	}
	for _, p := range r.Packages {
		if !packageForm().MatchString(p) {
			return bad("%q is not the name of a Debian package", p)
		}
	}
	for _, m := range r.Modules {
		if !moduleForm().MatchString(m) {
			return bad("%q is not the name of a module", m)
		}
	}
	return r, nil
}

// moduleNames returns the names of all modules that the guest loads.
func (r Recipe) moduleNames() []string {
	list := slices.Clone(guestModules)
	if r.Docker {
		list = append(list, dockerModules...)
	}
	return append(list, r.Modules...)
}
