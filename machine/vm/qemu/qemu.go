//go:build linux

// Package qemu runs virtual machines on QEMU: with KVM where that works, else by
// emulation, which needs no hardware and no rights.
package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Options configure a Driver. Kernel is required; zero fields mean defaults.
type Options struct {
	// Program is QEMU's. Default: that of this machine's architecture, in PATH.
	Program string
	// Accel is "kvm" or "tcg", which is emulation. Default: kvm if a machine with
	// Kernel comes up on it here, which New tries once for each boot of this machine.
	Accel string
	// Kernel is one to try that with.
	Kernel string
	// Cache is a directory for what was found out.
	Cache string
	// Log receives what the driver has to say. Default: nowhere.
	Log *slog.Logger
}

// What a machine runs on.
const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// A Driver makes machines with QEMU.
type Driver struct {
	opts    Options
	program string
	arch    arch
	accel   string
	why     string // there is no KVM
	log     *slog.Logger
}

// New finds QEMU, and what its machines run on. Kinds: ErrUnavailable (it is not
// installed), ErrInvalid.
func New(ctx context.Context, opts Options) (*Driver, error) {
	a, ok := arches[runtime.GOARCH]
	if !ok {
		return nil, atoll.Errorf("qemu", "", atoll.ErrUnsupported, "there are no machines for %s", runtime.GOARCH)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	path, err := Find(opts.Program)
	if err != nil {
		return nil, err
	}
	d := &Driver{opts: opts, program: path, arch: a, log: opts.Log}
	switch opts.Accel {
	case accelKVM, accelTCG:
		d.accel, d.why = opts.Accel, "that was asked for"
	case "":
		if d.accel, d.why, err = d.probe(ctx); err != nil {
			return nil, err
		}
	default:
		return nil, atoll.Errorf("qemu", "", atoll.ErrInvalid, "accelerator %q: use kvm or tcg", opts.Accel)
	}
	return d, nil
}

// Find returns the path of QEMU's program: "" is that of this machine's architecture.
// Kinds: ErrUnavailable.
func Find(program string) (string, error) {
	program = cmp.Or(program, arches[runtime.GOARCH].program)
	path, err := exec.LookPath(program)
	if err != nil {
		return "", atoll.Errorf("qemu", "", atoll.ErrUnavailable, "%s is not installed: on Debian and Ubuntu, apt-get install %s", program, packages[runtime.GOARCH])
	}
	return path, nil
}

var packages = map[string]string{"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}

// Name implements vm.Driver.
func (d *Driver) Name() string { return "qemu" }

// Caps implements vm.Driver.
func (d *Driver) Caps() vm.Caps {
	caps := Caps()
	caps.Emulated = d.accel == accelTCG
	return caps
}

// maxMTU is that of virtio's cards.
const maxMTU = 65535

// Caps are those of every Driver here, as far as no machine has to be tried for that:
// Emulated is.
func Caps() vm.Caps {
	_, noShares := findShareDaemon()
	return vm.Caps{
		Pause: true, Network: true, MTU: maxMTU, Shares: noShares == nil, Locked: noShares == nil,
		Formats: []vm.Format{vm.FormatRaw, vm.FormatQcow2},
	}
}

// HasVsock reports whether Hardware.CID can be used.
func HasVsock() error {
	f, err := os.OpenFile("/dev/vhost-vsock", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Probe implements vm.Driver.
func (d *Driver) Probe(ctx context.Context) atoll.Probe {
	out, err := exec.CommandContext(ctx, d.program, "--version").Output()
	if err != nil {
		return atoll.Probe{Reason: fmt.Sprintf("%s does not run: %v", d.program, err), Fix: "apt-get install " + packages[runtime.GOARCH]}
	}
	first, _, _ := strings.Cut(string(out), "\n")
	p := atoll.Probe{OK: true, Notes: []string{first}}
	if d.accel == accelTCG {
		p.Notes = append(p.Notes, "without KVM machines are emulated, and slow: "+d.why)
	}
	if _, err := findShareDaemon(); err != nil {
		p.Notes = append(p.Notes, "no directories can be shared with machines: "+cause(err))
	}
	return p
}

// Probe finds out whether New works with opts, and what its Driver says. Without a
// kernel to try it with, KVM is only looked for.
func Probe(ctx context.Context, opts Options) atoll.Probe {
	untried := opts.Kernel == "" && opts.Accel == ""
	if untried {
		opts.Accel = accelTCG
	}
	d, err := New(ctx, opts)
	if err != nil {
		return atoll.Probe{Reason: cause(err), Fix: "apt-get install " + packages[runtime.GOARCH]}
	}
	if !untried {
		return d.Probe(ctx)
	}
	if d.why = usable(); d.why != "" {
		return d.Probe(ctx)
	}
	d.accel = accelKVM
	p := d.Probe(ctx)
	p.Notes = append(p.Notes, "there is "+kvmDevice+": whether machines come up on it is found out with the first kernel")
	return p
}

// cause is what an error of ours says apart from what was being done.
func cause(err error) string {
	if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

var _ vm.Driver = (*Driver)(nil)

// kvmDevice is there where the kernel has KVM.
const kvmDevice = "/dev/kvm"

// usable is why KVM cannot be used, as far as can be seen without trying.
func usable() string {
	if err := unix.Access(kvmDevice, unix.R_OK|unix.W_OK); err != nil {
		if os.IsNotExist(err) {
			return "there is no " + kvmDevice
		}
		return fmt.Sprintf("%s: %v: add yourself to the group kvm", kvmDevice, err)
	}
	return ""
}
