package main

import "time"

// lookEvery is the time between two looks at the CPUs. A step that begins has it to become busy.
const lookEvery = 5 * time.Second

// idleShare is the share of the CPUs' time that must have been idle since the last look before a further
// step begins.
const idleShare = 0.2

// maxLanes is the largest number of steps that run at once, for each worker.
const maxLanes = 2

// lanes decide which step begins next. Some steps mostly wait, for clocks, clusters and machines, so further
// ones begin while CPUs are idle: up to maxLanes for each worker.
type lanes struct {
	workers int
	running int
	spare   bool  // CPUs were idle, and no further step has begun since
	last    usage // at the last look
}

// findNext returns the index of the first step that may begin now; -1 if one has to end first. No
// step passes one of the core or one that runs alone.
func (l *lanes) findNext(steps []step) int {
	for i := range steps {
		if s := &steps[i]; l.hasRoom(s) {
			return i
		} else if s.first || s.alone {
			return -1
		}
	}
	return -1
}

func (l *lanes) hasRoom(s *step) bool {
	if s.alone {
		return l.running == 0
	}
	return l.running < l.workers || l.spare && l.running < maxLanes*l.workers
}

// beginStep counts a step that begins.
func (l *lanes) beginStep() {
	l.running++
	l.spare = false
}

// lookAtCPUs decides whether a further step may begin, from the CPU time used since the last look. With one
// worker, or on a system that counts no CPU time, none may.
func (l *lanes) lookAtCPUs(now usage, cpus int) {
	used, passed := now.cpu-l.last.cpu, time.Duration(cpus)*now.at.Sub(l.last.at)
	l.spare = l.workers > 1 && l.last.cpu > 0 && float64(used) < (1-idleShare)*float64(passed)
	l.last = now
}
