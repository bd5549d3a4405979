package providertest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// ownThreads is the greatest number of threads, besides those of the processes that the limit
// allows, which a provider may need in a sandbox.
const ownThreads = 96

var limitPromises = []promise{
	{"the memory limit ends processes that exceed it inside, and none outside", []need{needMemory}, func(t *testing.T, h *harness) {
		bystander := h.plainSandbox(t)
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Memory: 128 << 20}})
		if code := h.runForCode(t, sb, scriptCommand("eat", 16)); code != 0 {
			t.Errorf("16 MiB do not fit into 128 MiB: exit %d", code)
		}
		p, err := sb.Exec(h.newContext(t), scriptCommand("eat", 512))
		if err == nil {
			var exit atoll.Exit
			exit, err = p.Wait(h.newContext(t))
			if err == nil && exit.Success() {
				t.Error("512 MiB fit into 128 MiB")
			}
		}
		if err != nil {
			wantKind(t, "Exec and Wait", err, atoll.ErrStopped) // the whole sandbox was ended
			if st := h.waitForState(t, sb, atoll.StateFailed); st.Reason == "" {
				t.Error("the sandbox failed without a reason")
			}
		}
		h.runForOutput(t, bystander, programCommand("echo", "unharmed"))
	}},
	{"the end of the memory ends the greediest process, says so, and spares all else", []need{needMemory}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Memory: 128 << 20}})
		if code := h.runForCode(t, sb, scriptCommand("store", "/var/tmp/file", "kept")); code != 0 {
			t.Errorf("store: exit %d", code)
		}
		modest, _ := h.startReady(t, sb, scriptCommand("trap", "TERM"))
		var greedy []atoll.Process
		for range 2 {
			greedy = append(greedy, h.startProcess(t, sb, scriptCommand("grow", 256)))
		}
		for _, p := range greedy {
			exit := h.waitExit(t, p)
			if exit.Code != 137 {
				t.Errorf("exit is %+v, want code 137", exit)
			}
			if says := strings.HasPrefix(exit.Reason, "out of memory: the sandbox used more than"); !says && h.p.Info().Caps.ExitSignal {
				t.Errorf("exit is %+v, want the reason", exit)
			}
		}
		if got := h.runForOutput(t, sb, programCommand("cat", "/var/tmp/file")); got != "kept" {
			t.Errorf("the file contains %q", got)
		}
		if err := modest.Signal(h.newContext(t), atoll.SIGTERM); err != nil {
			t.Errorf("Signal to the process that uses little: %v", err)
		}
		if exit := h.waitExit(t, modest); exit.Code != 42 {
			t.Errorf("exit of the process that uses little is %+v, want code 42", exit)
		}
	}},
	{"programs see the limits of memory and CPUs", []need{needMemory, needCPU}, func(t *testing.T, h *harness) {
		const memory, cpus = 256 << 20, 0.7
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Memory: memory, CPUs: cpus}})
		check := func() {
			t.Helper()
			shown := map[string]int{}
			for line := range strings.Lines(h.runForOutput(t, sb, scriptCommand("limits"))) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				n, err := strconv.Atoi(value)
				if err == nil && (shown[name] == 0 || n < shown[name]) { // else it is more than an int holds, or "max"
					shown[name] = n
				}
			}
			if got := shown["memory"]; got > memory || got < memory/2 {
				t.Errorf("programs see %d bytes of memory, want at most %d, and not much less", got, memory)
			}
			if got := shown["cpus"]; got != 1 {
				t.Errorf("programs see %d CPUs, want %.1f rounded up", got, cpus)
			}
			if got := shown["shm"] << 10; got > memory/2 || got < memory/4 {
				t.Errorf("/dev/shm has %d bytes, want half of the memory", got)
			}
		}
		check()
		if !h.p.Info().Caps.Restart {
			return
		}
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		check()
	}},
	{"output of ended commands does not use up the memory", []need{needMemory}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Memory: 128 << 20}})
		var procs []atoll.Process
		for range 100 {
			p := h.startProcess(t, sb, scriptCommand("zeros", 1<<20))
			h.waitExit(t, p)
			procs = append(procs, p)
		}
		for _, i := range []int{0, 50, 99} {
			p, err := sb.Process(h.newContext(t), procs[i].ID())
			if err != nil {
				t.Errorf("process %d of 100: %v", i, err)
			} else if exit := h.waitExit(t, p); !exit.Success() {
				t.Errorf("process %d of 100: %v", i, exit)
			}
		}
	}},
	{"the CPU limit applies to all processes together", []need{needCPU, needUsage}, func(t *testing.T, h *harness) {
		const cpus, most = 0.5, 0.75
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{CPUs: cpus}})
		for range 2 {
			h.startProcess(t, sb, scriptCommand("spin"))
		}
		used := func() time.Duration {
			u, err := atoll.UsageOf(h.newContext(t), sb)
			if err != nil {
				t.Fatalf("UsageOf: %v", err)
			}
			return time.Duration(u.CPU)
		}
		begin, before := time.Now(), used()
		time.Sleep(min(max(time.Second, testenv.Scale(500*time.Millisecond)), 5*time.Second)) // at least ten periods of the scheduler, for a stable rate
		rate := (used() - before).Seconds() / time.Since(begin).Seconds()
		if rate > most || rate <= 0 {
			t.Errorf("two busy loops used %.2f CPUs, want %.1f at most", rate, cpus)
		}
	}},
	{"the process limit applies", []need{needProcs}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Processes: 32}})
		if got := h.runForOutput(t, sb, scriptCommand("spawn", 4)); got != "all" {
			t.Errorf("4 processes could not be started: %q", got)
		}
		cmd := scriptCommand("spawn", 200)
		cmd.Timeout = atoll.Duration(h.shortLimit())
		if res := h.runCommand(t, sb, cmd); string(res.Stdout) == "all\n" {
			t.Error("200 processes run where 32 may")
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}},
	{"the process limit applies to all users together", []need{needProcs, needUsers, needUsage}, func(t *testing.T, h *harness) {
		const limit = 64
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Processes: limit}})
		for user := range 6 {
			cmd := scriptCommand("crowd", limit-8)
			cmd.User, cmd.Timeout = strconv.Itoa(1000+user), atoll.Duration(h.shortLimit())
			if _, err := atoll.Capture(h.newContext(t), sb, cmd, 1<<10); err != nil {
				wantKind(t, "Exec", err, atoll.ErrExhausted)
			}
		}
		u, err := atoll.UsageOf(h.newContext(t), sb)
		if err != nil {
			t.Fatalf("UsageOf: %v", err)
		}
		if u.Processes > limit+ownThreads {
			t.Errorf("six users run %d processes, where %d may", u.Processes, limit)
		}
	}},
	{"the disk limit applies to files outside of volumes", []need{needDisk}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Disk: 32 << 20}})
		if code := h.runForCode(t, sb, scriptCommand("fill", "/var/tmp/small", 4)); code != 0 {
			t.Errorf("4 MiB do not fit into 32 MiB: exit %d", code)
		}
		if code := h.runForCode(t, sb, scriptCommand("fill", "/var/tmp/big", 64)); code == 0 {
			t.Error("64 MiB fit into 32 MiB")
		}
		h.runForOutput(t, sb, programCommand("echo", "still there"))
	}},
	{"programs that write more than the disk limit are ended", []need{needDiskWatch}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Resources: atoll.Resources{Disk: 32 << 20}})
		p, _ := h.startReady(t, sb, scriptCommand("ready"))
		if exit := h.runCommand(t, sb, scriptCommand("swell", "/var/tmp/small", 4, 1)).Exit; exit.Code != 0 {
			t.Errorf("4 MiB do not fit into 32 MiB: %+v", exit)
		}
		if exit := h.runCommand(t, sb, scriptCommand("swell", "/work/big", 64, 1)).Exit; exit.Code != 0 {
			t.Errorf("64 MiB do not fit into the data volume: %+v", exit)
		}
		for _, script := range []string{"swell", "nameless"} {
			exit := h.runCommand(t, sb, scriptCommand(script, "/var/tmp/"+script, 64, 1000)).Exit
			if exit.Code != 137 || !strings.Contains(exit.Reason, "disk limit") {
				t.Errorf("%s: 64 MiB fit into 32 MiB: %+v", script, exit)
			}
		}
		if exit := h.waitExit(t, p); !strings.Contains(exit.Reason, "disk limit") {
			t.Errorf("another program ended with %+v", exit)
		}
		if exit := h.runCommand(t, sb, scriptCommand("swell", "/var/tmp/more", 8, 1000)).Exit; !strings.Contains(exit.Reason, "disk limit") {
			t.Errorf("a program that writes more ended with %+v", exit)
		}
		h.runForOutput(t, sb, programCommand("rm", "/var/tmp/swell", "/var/tmp/more"))
		if exit := h.runCommand(t, sb, scriptCommand("swell", "/var/tmp/small", 8, 1)).Exit; exit.Code != 0 {
			t.Errorf("8 MiB do not fit into 32 MiB after the others were removed: %+v", exit)
		}
	}},
	{"a read-only root cannot be written to, the work directory can", []need{needReadOnly}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{ReadOnlyRoot: true})
		for _, name := range []string{"/usr/new", "/etc/new", "/new"} {
			if h.runForCode(t, sb, scriptCommand("store", name, "x")) == 0 {
				t.Errorf("the process could write %s", name)
			}
		}
		if code := h.runForCode(t, sb, scriptCommand("store", "/work/new", "x")); code != 0 {
			t.Errorf("the process could not write to the work directory: exit %d", code)
		}
	}},
	{"Usage returns memory, CPU time and processes", []need{needUsage}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		before, err := atoll.UsageOf(h.newContext(t), sb)
		if err != nil {
			t.Fatalf("UsageOf: %v", err)
		}
		for range 3 {
			h.startReady(t, sb, scriptCommand("drip"))
		}
		h.waitUntil(t, h.shortLimit(), func() error {
			u, err := atoll.UsageOf(h.newContext(t), sb)
			if err != nil || u.Processes < before.Processes+3 || u.CPU <= before.CPU || u.Memory <= 0 {
				return errors.Join(err, fmt.Errorf("usage is %+v, was %+v before three processes", u, before))
			}
			return nil
		})
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		_, err = atoll.UsageOf(h.newContext(t), sb)
		wantKind(t, "UsageOf a stopped sandbox", err, atoll.ErrStopped)
	}},
}
