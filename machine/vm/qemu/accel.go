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

// Only a trial shows whether KVM works: on some machines the device opens, but no kernel boots on it.

// trialTimeout bounds how long a kernel on KVM may take to find that it has no root file system: an
// ordinary machine needs 0.3 s.
const trialTimeout = 5 * time.Second

// chooseAccel returns the accelerator for machines, and, if it is not KVM, why.
func (d *Driver) chooseAccel(ctx context.Context) (accel, why string, err error) {
	if why := kvmProblem(); why != "" {
		return accelTCG, why, nil
	}
	if d.opts.Kernel == "" {
		return "", "", atoll.Errorf("qemu", "", atoll.ErrInvalid, "no kernel given to try KVM with")
	}
	note := d.accelCachePath()
	if text, err := os.ReadFile(note); err == nil {
		accel, why, _ := strings.Cut(string(text), ":")
		if accel == accelKVM || accel == accelTCG {
			return accel, why, nil
		}
	}
	accel = accelKVM
	if why, err = d.tryKVM(ctx); err != nil {
		return "", "", err
	}
	if why != "" {
		accel = accelTCG
	}
	d.log.Info("qemu: tried KVM", "accel", accel, "why", why)
	if note != "" {
		if err := fsutil.WriteFile(note, []byte(accel+":"+why)); err != nil {
			d.log.Warn("qemu: the result of the KVM trial was not saved, and the trial will be repeated", "err", err)
		}
	}
	return accel, why, nil
}

// accelCachePath returns the file that records the accelerator for this kernel, this QEMU and this
// boot of the computer; "" if there is none.
func (d *Driver) accelCachePath() string {
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

// tryKVM boots the kernel on KVM without a root file system. A panic and the end of QEMU are
// success, since there is nothing to run. Otherwise why is the reason that KVM does not work.
func (d *Driver) tryKVM(ctx context.Context) (why string, err error) {
	bounded, cancel := context.WithTimeout(ctx, trialTimeout)
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
		return fmt.Sprintf("%s opens, but no kernel boots on it within %s", kvmDevice, trialTimeout), nil
	case err != nil:
		last := strings.TrimSpace(string(out))
		return fmt.Sprintf("%s opens, but QEMU does not start with it: %v: %s", kvmDevice, err, last[strings.LastIndexByte(last, '\n')+1:]), nil
	}
	return kvmDevice + " opens, but a kernel on it prints nothing", nil
}
