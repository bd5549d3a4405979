//go:build linux

package hull

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Usage implements keeper.Engine: the CPU time is that of the machine's programs.
func (e *engine) Usage(ctx context.Context) (atoll.Usage, error) {
	n, err := e.Running(ctx)
	return atoll.Usage{Memory: e.memory(), Processes: n, CPU: atoll.Duration(childTime())}, err
}

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// childTime is the CPU time that the children of this process have used. What cannot be
// read counts nothing.
func childTime() (sum time.Duration) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(pids)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // a name may hold anything
			for i := 11; i <= 12 && i < len(fields); i++ {                  // utime and stime; see proc_pid_stat(5)
				n, _ := strconv.ParseInt(string(fields[i]), 10, 64)
				sum += time.Duration(n) * tick
			}
		}
	}
	return sum
}
