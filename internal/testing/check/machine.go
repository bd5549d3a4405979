package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// startReference is the time in which an empty program starts and ends on a machine of slowness 1.
const startReference = 1500 * time.Microsecond

// measureSlowness returns the median time in which an empty static Go program starts and ends, and its
// ratio to startReference, at least 1. Machines differ by a factor of six in the cost of starting a
// process. The program stays in scratch as "empty".
func measureSlowness(scratch string) (start time.Duration, slowness float64, err error) {
	source, program := filepath.Join(scratch, "empty.go"), filepath.Join(scratch, "empty")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return 0, 0, err
	}
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("build an empty program: %w: %s", err, out)
	}
	times := make([]time.Duration, 41)
	for i := range times {
		begin := time.Now()
		if err := exec.Command(program).Run(); err != nil {
			return 0, 0, err
		}
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	start = times[len(times)/2]
	return start, max(1, float64(start)/float64(startReference)), nil
}

// slownessVar tells tests how slow the machine is; see internal/testing/testenv.
const slownessVar = "CHECK_SLOWNESS"

// busy multiplies the limits of tests because other steps run beside them.
const busy = 2

// setSlowness passes the machine's slowness to all tests.
func setSlowness(slowness float64) error {
	return os.Setenv(slownessVar, strconv.FormatFloat(busy*slowness, 'f', 2, 64))
}
