//go:build linux

package sentry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/sentry/control"
)

// cgroupDir is the directory in which the sandbox sees its limits as a cgroup of version 2, which
// is the sentry's own: it enforces the number of processes, and only shows the other limits, which
// the host's cgroup enforces.
const cgroupDir = "/sys/fs/cgroup"

// cpuPeriod is the period of the CPU quota that the sandbox sees, in microseconds.
const cpuPeriod = 100_000

// ociResources returns the limits that the host enforces. Package runsc has the sentry show them as
// the size of the machine. A sandbox from a snapshot keeps the number of CPUs that it had: programs
// have seen it.
func ociResources(job *job) *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if limit := int64(job.Spec.Resources.Memory); job.Caps.MemoryLimit && limit > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if cpus := job.Spec.Resources.CPUs; job.Caps.CPULimit && cpus > 0 {
		quota, period := int64(math.Ceil(cpus*cpuPeriod)), uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return r
}

// extraThreads is the number of threads on top of the process limit: the first process, and those of
// the guest, which must start when a user's programs have reached the limit.
const extraThreads = 1 + 23

// setLimits writes the limits of the sandbox to its cgroup inside.
func (s *sentry) setLimits(job *job) error {
	group := "/" + s.c.ID
	if job.Snapshot != "" {
		var err error
		if group, err = s.readGroup(); err != nil || group == "" {
			return err
		}
	}
	values := map[string]string{"memory.max": "max", "cpu.max": "max", "pids.max": "max"}
	r := ociResources(job)
	if r.Memory != nil {
		values["memory.max"] = strconv.FormatInt(*r.Memory.Limit, 10)
	}
	if r.CPU != nil {
		values["cpu.max"] = fmt.Sprint(*r.CPU.Quota, " ", *r.CPU.Period)
	}
	if n := job.Spec.Resources.Processes; n > 0 {
		values["pids.max"] = strconv.Itoa(n + extraThreads)
	}
	var errs []error
	for name, value := range values {
		file := control.CgroupControlFile{Controller: "memory", Path: group, Name: name} // version 2 ignores the controller
		if err := s.sb.CgroupsWriteControlFile(file, value); err != nil {
			errs = append(errs, fmt.Errorf("limit %s=%s: %w", name, value, err))
		}
	}
	return errors.Join(errs...)
}

// readGroup returns the cgroup of a sandbox that was restored: that of the sandbox of which the
// first snapshot was taken. It returns "" if there was none, as in snapshots of earlier versions.
func (s *sentry) readGroup() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), accountsTimeout)
	defer cancel()
	data, err := s.readFile(ctx, "/proc/1/cgroup", accountsLimit)
	if err != nil {
		return "", fmt.Errorf("find the cgroup of the snapshot: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && group != "/" {
			return group, nil
		}
	}
	return "", nil
}
