//go:build linux

package sentry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/plan"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
)

// A memoryGuard ends the process with the most memory when the sandbox has used up its own. If it
// is too slow for programs that take the reserve as well, the kernel ends the sentry.
type memoryGuard struct {
	engine *engine
	limits cgroup.Limits
	slack  int64               // bytes above the limit that files in memory may use
	much   int64               // bytes of a process below which its end helps little
	watch  *cgroup.MemoryWatch // nil without a limit
	done   chan struct{}       // closed when the guard has ended
	logged time.Time           // the last message about a kill

	mu     sync.Mutex
	killed map[int32]kill // by PID: the processes that were killed, and their ancestors
}

// A kill says why and when a process was killed.
type kill struct {
	reason string
	time   time.Time
}

// startGuard starts the guard of a sandbox whose sentry runs.
func (e *engine) startGuard() error {
	g := &memoryGuard{engine: e, done: make(chan struct{}), killed: map[int32]kill{}}
	if e.job.Caps.MemoryLimit {
		g.limits = plan.CgroupLimits(e.job.Spec.Resources)
	}
	g.slack = min(max(g.limits.Memory/8, 32<<20), 256<<20)
	g.much = max(g.limits.Memory/32, 16<<20)
	e.guard = g
	var err error
	if g.watch, err = e.sandbox.Group.WatchMemory(g.limits); err != nil || g.watch == nil {
		close(g.done)
		return err
	}
	go func() { <-e.sentry.exited; _ = g.watch.Close() }()
	go g.run()
	return nil
}

// wait blocks until the guard has ended, which the end of the sentry causes, but not for a sentry that does not end.
func (g *memoryGuard) wait() {
	select {
	case <-g.done:
	case <-time.After(guardEndTime):
	}
}

// guardEndTime is the time in which the guard of a sentry that has ended ends.
const guardEndTime = 5 * time.Second

// run checks the memory in the beginning, until the kernel watches it, and then as long as it grows after a report
// of the kernel.
func (g *memoryGuard) run() {
	defer close(g.done)
	settled := int64(0) // what remained used when killing more processes would have given nothing back
	for err := error(nil); !g.hasEnded(err); err = g.watch.Wait() {
		if g.usedMemory() > g.limits.Memory*3/4 { // it is not the cache of files that grows
			g.throttle(false)
		}
		for last, since := int64(0), time.Now(); time.Since(since) < calmTime || !g.watch.Ready(); {
			used := g.usedMemory()
			if used > last+g.limits.Memory/1024 {
				since = time.Now()
			}
			last = used
			if used <= g.limits.Memory {
				settled = 0
			} else if used > settled+g.slack/8 {
				settled = g.relieve(used)
			}
			select {
			case <-g.engine.sentry.exited:
				return
			case <-time.After(g.nextCheck(used)):
			}
		}
		g.throttle(true)
	}
}

// hasEnded reports whether the watch ended with err. It logs the error if the sentry runs.
func (g *memoryGuard) hasEnded(err error) bool {
	select {
	case <-g.engine.sentry.exited:
		return true
	default:
	}
	if err != nil {
		g.engine.sandbox.Log.Warn("nothing watches the memory of the sandbox: if it exceeds the limit, the whole sandbox ends", "err", err)
	}
	return err != nil
}

// throttle sets whether the kernel may slow down processes that use the reserve. A system call that
// it slows down could delay the end of its process, and all calls to the sentry.
func (g *memoryGuard) throttle(on bool) {
	if err := g.engine.sandbox.Group.Throttle(g.limits, on); err != nil {
		g.engine.sandbox.Log.Debug("memory", "err", err)
	}
}

func (g *memoryGuard) usedMemory() int64 { return g.engine.sandbox.Group.FixedMemory() }

const (
	calmTime      = 300 * time.Millisecond // without growth, after which the guard waits for the kernel's next report
	guardInterval = time.Millisecond
	growthRate    = 4 << 30 // bytes of memory in a second that programs take at most
)

// nextCheck returns the time until the memory may be used up.
func (g *memoryGuard) nextCheck(used int64) time.Duration {
	left := float64(max(g.limits.Memory-used, 0)) / growthRate
	return min(max(time.Duration(left*float64(time.Second)), guardInterval), calmTime/4)
}

// relieve kills processes until the memory suffices, or until the end of more would give nothing
// back, and returns what is used then. It kills more in each round that did not help: processes
// share memory, and each costs the sentry some that is not the process's own. It does nothing while
// the sandbox is frozen: then nothing grows, and a process that is killed does not end.
func (g *memoryGuard) relieve(used int64) int64 {
	for r := (relief{factor: 1, begun: time.Now(), owing: map[int32]victim{}}); used > g.limits.Memory; {
		if g.engine.sentry.isFrozen() {
			return 0
		}
		before := used
		if err := g.killGreatest(&r); err != nil {
			g.engine.sandbox.Log.Debug("memory", "err", err) // the sentry has ended
			break
		}
		used = g.awaitRelief(before)
		grew := used > before+g.slack/8
		if r.least == 0 && !r.owed || r.least > 0 && r.least < g.much && !grew {
			break
		}
		if grew { // others have taken what came back
			clear(r.owing)
		}
		if used >= before && (grew && !r.dying || time.Since(r.begun) > dyingTime) {
			r.factor = min(r.factor*2, maxFactor)
		}
	}
	return used
}

// A relief is the state of one call of relieve.
type relief struct {
	factor int              // how much more to kill than seems to be needed
	begun  time.Time        // later by the time in which the processes inside stood still
	killed []int32          // the PIDs of all processes that were killed
	owing  map[int32]victim // by PID: those whose memory has yet to come back
	dying  bool             // a process that an earlier round killed has not ended
	owed   bool             // one has ended, and its memory has yet to come back
	least  int64            // the memory of the last process that the last round killed; 0 if it killed none
}

// A victim is a process that was killed.
type victim struct {
	memory int64
	time   time.Time
}

// maxFactor is the most that a round kills: with it, all processes, unless none has much memory.
const maxFactor = 1 << 10

// dyingTime is the time that a process which was killed has to end and to give its memory back.
const dyingTime = time.Second

// killGreatest kills the processes with the most memory until they give back enough.
func (g *memoryGuard) killGreatest(r *relief) error {
	halted := time.Now()
	resume := g.engine.sentry.halt()
	defer func() {
		resume()
		r.begun = r.begun.Add(time.Since(halted)) // long, if a pause or a snapshot came first
	}()
	procs, err := g.engine.sentry.measureProcesses()
	if err != nil {
		return err
	}
	for _, p := range g.chooseVictims(procs, g.usedMemory(), r) {
		if !slices.Contains(r.killed, p.pid) {
			g.explainKill(procs, p)
			r.killed = append(r.killed, p.pid)
			r.owing[p.pid] = victim{p.memory, time.Now()}
		}
		if err := g.engine.sentry.signalProcess(p.pid, atoll.SIGKILL); err != nil {
			g.engine.sandbox.Log.Debug("memory", "err", err) // it has ended
		}
	}
	return nil
}

// chooseVictims returns the processes with the most memory that together give back enough. If no
// process has much, most of the memory is files, which the end of a process does not give back: then
// it returns some only once the slack is used, and then factor processes. It returns none if the
// memory suffices by now.
func (g *memoryGuard) chooseVictims(procs []processInfo, used int64, r *relief) (victims []processInfo) {
	r.least, r.dying, r.owed = 0, false, false
	if used <= g.limits.Memory {
		return nil
	}
	procs = slices.Clone(procs)
	for i := range procs {
		if procs[i].leaderless {
			procs[i].memory = g.much // for all that is known
		}
	}
	slices.SortStableFunc(procs, func(a, b processInfo) int { return cmp.Compare(b.memory, a.memory) })
	missing, small := int64(r.factor)*(used-g.limits.Memory*15/16), 0
	if used > g.limits.Memory+g.slack {
		small = r.factor
	}
	for pid, v := range r.owing {
		lives := slices.ContainsFunc(procs, func(p processInfo) bool { return p.pid == pid && !p.ended })
		if !lives && time.Since(v.time) < dyingTime {
			missing, r.owed = missing-v.memory, true
		}
	}
	for _, p := range procs {
		if p.pid == 1 || p.ended {
			continue
		}
		if p.memory < g.much {
			small--
		}
		if missing <= 0 || small < 0 {
			break
		}
		if slices.Contains(r.killed, p.pid) {
			r.dying = true
		}
		victims = append(victims, p)
		r.least, missing = p.memory, missing-p.memory
	}
	return victims
}

// reliefTime is the time in which the memory of processes that were killed begins to come back: more
// than two periods of the kernel's limit of CPU time, in which a sandbox may have to stand still.
const reliefTime = 250 * time.Millisecond

// awaitRelief waits as long as the memory shrinks from what was used before, and returns what is
// used then.
func (g *memoryGuard) awaitRelief(used int64) int64 {
	least := used
	for since := time.Now(); time.Since(since) < reliefTime; time.Sleep(guardInterval) {
		used = g.usedMemory()
		if used <= g.limits.Memory || used > least+g.slack/8 {
			return used
		}
		if used < least {
			least, since = used, time.Now()
		}
	}
	return g.usedMemory()
}

// explainKill records why the process and its ancestors end. A shell ends with the code of its
// last command.
func (g *memoryGuard) explainKill(procs []processInfo, p processInfo) {
	limit := g.engine.job.Spec.Resources.Memory
	reason := fmt.Sprintf("out of memory: the sandbox used more than %s, and %s (process %d), which had %s, was killed", limit, p.name, p.pid, atoll.Bytes(p.memory&^(1<<20-1)))
	if p.memory < g.much {
		reason = fmt.Sprintf("out of memory: the sandbox used more than %s, most of it not for processes, and %s (process %d) was killed: remove files from /dev/shm and other file systems in memory", limit, p.name, p.pid)
	}
	now := time.Now()
	if now.Sub(g.logged) > time.Second { // a program can cause this any number of times
		g.engine.sandbox.Log.Warn(reason)
		g.logged = now
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.killed, func(_ int32, k kill) bool { return now.Sub(k.time) > keepKill })
	for pid := p.pid; pid > 1; {
		g.killed[pid] = kill{reason, now}
		i := slices.IndexFunc(procs, func(q processInfo) bool { return q.pid == pid })
		if i < 0 {
			return
		}
		pid = procs[i].ppid
	}
}

// keepKill is the time for which a kill is remembered for the ancestors of the process.
const keepKill = time.Minute

// takeReason returns why the program with that PID, started at that time, has ended, if it or a
// program that it had started was killed for lack of memory; else "".
func (g *memoryGuard) takeReason(pid int32, started time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.killed[pid]
	delete(g.killed, pid)
	if k.time.Before(started) || time.Since(k.time) > keepKill { // another process had the PID, or the kill was of a child long ago
		return ""
	}
	return k.reason
}
