package providertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

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
