//go:build linux

package runsc

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// addLimits adds to the arguments of a sentry the limits in its container's specification. gVisor
// itself adds only those of cgroups that it made.
func addLimits(args []string) ([]string, error) {
	boot := slices.Index(args, "boot")
	if boot < 0 {
		return args, nil
	}
	limits, err := readLimits(args[boot:])
	if err != nil {
		return nil, fmt.Errorf("limits of the sandbox: %w", err)
	}
	return slices.Insert(slices.Clone(args), len(args)-1, limits...), nil // the last argument is the container
}

// readLimits returns the flags for the limits in the specification whose open file the
// arguments name. It leaves the offset of that file alone.
func readLimits(args []string) ([]string, error) {
	const flag = "--spec-fd="
	i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	if i < 0 {
		return nil, fmt.Errorf("no %s in %q", flag, args)
	}
	fd, err := strconv.Atoi(strings.TrimPrefix(args[i], flag))
	if err != nil {
		return nil, err
	}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return nil, err
	}
	data := make([]byte, info.Size)
	n, err := unix.Pread(fd, data, 0)
	if err != nil {
		return nil, err
	}
	var spec struct {
		Linux struct{ Resources specs.LinuxResources }
	}
	if err := json.Unmarshal(data[:n], &spec); err != nil {
		return nil, err
	}
	return limitFlags(&spec.Linux.Resources, runtime.NumCPU()), nil
}

// limitFlags returns the flags for limits on a machine with that number of CPUs. A part of a CPU
// is shown as a whole one.
func limitFlags(r *specs.LinuxResources, cpus int) []string {
	var flags []string
	if m := r.Memory; m != nil && m.Limit != nil {
		flags = append(flags, "--total-memory="+strconv.FormatInt(*m.Limit, 10))
	}
	if c := r.CPU; c != nil && c.Quota != nil && c.Period != nil {
		shown := math.Ceil(float64(*c.Quota) / float64(*c.Period))
		flags = append(flags, "--cpu-num="+strconv.Itoa(int(min(shown, float64(cpus)))))
	}
	return flags
}
