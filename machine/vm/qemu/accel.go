//go:build linux

package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Whether KVM works can only be found out by trying: there are machines where the device
// opens, and no kernel comes up on it.

// trial is how long a kernel may take, on KVM, to find that it has no root file system:
// 0.3 s on an ordinary machine.
const trial = 5 * time.Second

// probe returns what machines run on, and why not on KVM.
func (d *Driver) probe(ctx context.Context) (accel, why string, err error) {
	if why := usable(); why != "" {
		return accelTCG, why, nil
	}
	if d.opts.Kernel == "" {
		return "", "", atoll.Errorf("qemu", "", atoll.ErrInvalid, "no kernel given to try KVM with")
	}
	note := d.note()
	if text, err := os.ReadFile(note); err == nil {
		accel, why, _ := strings.Cut(string(text), ":")
		if accel == accelKVM || accel == accelTCG {
			return accel, why, nil
		}
	}
	accel = accelKVM
	if why, err = d.try(ctx); err != nil {
		return "", "", err
	}
	if why != "" {
		accel = accelTCG
	}
	d.log.Info("qemu: KVM was tried", "accel", accel, "why", why)
	if note != "" {
		if err := fsutil.WriteFile(note, []byte(accel+":"+why)); err != nil {
			d.log.Warn("qemu: it will be tried again", "err", err)
		}
	}
	return accel, why, nil
}

// note is the file that says what was found out for this kernel, this QEMU and this boot
// of the machine; "" if there is none.
func (d *Driver) note() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || d.opts.Cache == "" {
		return ""
	}
	hash := sha256.New()
	for _, path := range []string{d.opts.Kernel, d.program} {
		info, err := os.Stat(path)
		if err != nil {
			return ""
		}
		fmt.Fprintln(hash, path, info.Size(), info.ModTime().UnixNano())
	}
	hash.Write(boot)
	return filepath.Join(d.opts.Cache, "accel-"+hex.EncodeToString(hash.Sum(nil)[:8]))
}

// try boots the kernel on KVM with nothing to run. It is well when that panics, since
// there is nothing to run, and QEMU ends. why says that it is not.
func (d *Driver) try(ctx context.Context) (why string, err error) {
	bounded, cancel := context.WithTimeout(ctx, trial)
	defer cancel()
	cmd := exec.CommandContext(bounded, d.program, "-M", d.arch.machine, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-no-user-config",
		"-no-reboot", "-display", "none", "-serial", "stdio", "-kernel", d.opts.Kernel,
		"-append", strings.Join(append([]string{"console=" + d.arch.console, "panic=-1"}, d.arch.cmdline...), " "))
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case strings.Contains(string(out), "Kernel panic"):
		return "", nil
	case bounded.Err() != nil:
		return fmt.Sprintf("%s opens, but no kernel comes up on it within %s", kvmDevice, trial), nil
	case err != nil:
		last := strings.TrimSpace(string(out))
		return fmt.Sprintf("%s opens, but QEMU does not start with it: %v: %s", kvmDevice, err, last[strings.LastIndexByte(last, '\n')+1:]), nil
	}
	return kvmDevice + " opens, but a kernel on it says nothing", nil
}
