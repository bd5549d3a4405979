//go:build linux

// Package qemu runs virtual machines on QEMU: with KVM if that works, else by emulation, which
// needs no hardware support and no rights.
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
	// Accel is "kvm" or "tcg", which is emulation. Default: kvm if a machine with Kernel boots on
	// it here, which New tries once for each boot of this computer.
	Accel string
	// Kernel is the kernel for that trial.
	Kernel string
	// Cache is a directory for the result of the trial.
	Cache string
	// Log receives the driver's messages. Default: none.
	Log *slog.Logger
}

// The accelerators.
const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// A Driver creates machines with QEMU.
type Driver struct {
	opts    Options
	program string
	arch    arch
	accel   string
	why     string // why KVM is not used
	log     *slog.Logger
}

// New finds QEMU, and chooses the accelerator. Kinds: ErrUnavailable (QEMU is not installed),
// ErrInvalid.
func New(ctx context.Context, opts Options) (*Driver, error) {
	a, ok := arches[runtime.GOARCH]
	if !ok {
		return nil, atoll.Errorf("qemu", "", atoll.ErrUnsupported, "no virtual machines for architecture %s", runtime.GOARCH)
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
		d.accel, d.why = opts.Accel, "the configuration asks for it"
	case "":
		if d.accel, d.why, err = d.chooseAccel(ctx); err != nil {
			return nil, err
		}
	default:
		return nil, atoll.Errorf("qemu", "", atoll.ErrInvalid, "accelerator %q: use kvm or tcg", opts.Accel)
	}
	return d, nil
}

// Find returns the path of QEMU's program: "" stands for that of this computer's architecture.
// Kinds: ErrUnavailable.
func Find(program string) (string, error) {
	program = cmp.Or(program, arches[runtime.GOARCH].program)
	path, err := exec.LookPath(program)
	if err != nil {
		return "", vm.MissingProgram("qemu", "", "%s is not installed: on Debian and Ubuntu, apt-get install %s", program, packages[runtime.GOARCH])
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

// maxMTU is the limit of virtio's network cards.
const maxMTU = 65535

// Caps returns the capabilities of every Driver here, as far as they are known without trying a
// machine: all but Emulated.
func Caps() vm.Caps {
	_, noShares := findShareDaemon()
	return vm.Caps{
		Pause: true, Network: true, MTU: maxMTU, Shares: noShares == nil, Locked: noShares == nil,
		Formats: []vm.Format{vm.FormatRaw, vm.FormatQcow2},
	}
}

// HasVsock returns an error unless machines can have a Hardware.CID.
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
		p.Notes = append(p.Notes, "no directories can be shared with machines: "+causeText(err))
	}
	return p
}

// Probe reports whether New works with opts, and the result of its Driver's Probe. Without a kernel
// for a trial it only looks for KVM.
func Probe(ctx context.Context, opts Options) atoll.Probe {
	untried := opts.Kernel == "" && opts.Accel == ""
	if untried {
		opts.Accel = accelTCG
	}
	d, err := New(ctx, opts)
	if err != nil {
		p := atoll.Probe{Reason: causeText(err), Fix: "apt-get install " + packages[runtime.GOARCH]}
		if _, err := Find(opts.Program); err != nil && opts.Program == "" {
			p.Packages = []string{packages[runtime.GOARCH]}
		}
		return p
	}
	if !untried {
		return d.Probe(ctx)
	}
	if d.why = kvmProblem(); d.why != "" {
		return d.Probe(ctx)
	}
	d.accel = accelKVM
	p := d.Probe(ctx)
	p.Notes = append(p.Notes, "there is "+kvmDevice+": the first machine will show whether it works")
	return p
}

// causeText returns the text of an error without its operation.
func causeText(err error) string {
	if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

var _ vm.Driver = (*Driver)(nil)

// kvmDevice exists if the kernel has KVM.
const kvmDevice = "/dev/kvm"

// kvmProblem returns why KVM does not work, as far as that shows without a trial; "" if there is no
// reason.
func kvmProblem() string {
	if err := unix.Access(kvmDevice, unix.R_OK|unix.W_OK); err != nil {
		if os.IsNotExist(err) {
			return "there is no " + kvmDevice
		}
		return fmt.Sprintf("%s: %v: add yourself to the group kvm", kvmDevice, err)
	}
	return ""
}
