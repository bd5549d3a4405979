package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// usageNow reads what the kernel counts; its clock ticks a hundred times a second.
func usageNow() usage {
	now := usage{at: time.Now()}
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // the name, idle, iowait; guests are in user time already
			continue
		}
		ticks, _ := strconv.Atoi(field)
		now.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	return now
}
