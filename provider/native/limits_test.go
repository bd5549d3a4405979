//go:build linux

package native_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// Programs find the sandbox's limits where they look for the machine's size.
func TestLimitsInside(t *testing.T) {
	l := newLab(t)
	needLimits(l)
	const processors = "nproc; nproc --all; getconf _NPROCESSORS_ONLN; getconf _NPROCESSORS_CONF; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat"
	all := runtime.NumCPU()
	for _, tt := range []struct {
		resources atoll.Resources
		cpus      int
		memory    string // in MiB
	}{
		{atoll.Resources{CPUs: 1, Memory: 256 << 20}, 1, "256"},
		{atoll.Resources{CPUs: 0.5, Memory: 64 << 20}, 1, "64"},
		{atoll.Resources{CPUs: float64(all), Memory: 1 << 30}, all, "1024"},
	} {
		sb := l.NewSandbox(atoll.Spec{Resources: tt.resources})
		want := strings.TrimSpace(strings.Repeat(fmt.Sprintln(tt.cpus), 6))
		if got := l.Sh(sb, processors); got != want {
			t.Errorf("%+v: processors inside:\n%s", tt.resources, got)
		}
		online := "0"
		if tt.cpus > 1 {
			online = fmt.Sprintf("0-%d", tt.cpus-1)
		}
		for _, name := range []string{"online", "possible", "present"} {
			if got := l.Sh(sb, "cat /sys/devices/system/cpu/"+name); got != online {
				t.Errorf("%+v: %s processors: %s", tt.resources, name, got)
			}
		}
		if got := l.Sh(sb, "free -m | awk '/^Mem/ { print $2 }'"); got != tt.memory {
			t.Errorf("%+v: memory inside: %s MiB", tt.resources, got)
		}
		if used, err := strconv.Atoi(l.Sh(sb, "free -m | awk '/^Mem/ { print $3 }'")); err != nil || used > 20 {
			t.Errorf("%+v: a new sandbox uses %d MiB, %v", tt.resources, used, err)
		}
	}
}

// The time since its start is that of the sandbox.
func TestUptime(t *testing.T) {
	l := newLab(t)
	begin := time.Now()
	sb := l.NewSandbox(atoll.Spec{})
	for range 2 {
		uptime, err := strconv.ParseFloat(strings.Fields(l.Sh(sb, "cat /proc/uptime"))[0], 64)
		if passed := time.Since(begin).Seconds(); err != nil || uptime < 0 || uptime > passed+1 { // the kernel counts whole seconds from the start
			t.Errorf("the sandbox has run for %.2f s, %v; it was made %.2f s ago", uptime, err, passed)
		}
		l.Must("stop", sb.Stop(l.Context(), 0))
		begin = time.Now()
		l.Must("start", sb.Start(l.Context()))
	}
}

// The free memory inside is that of the limit, and changes while programs run.
func TestFreeMemory(t *testing.T) {
	l := newLab(t)
	if !l.Info().Caps.MemoryLimit {
		t.Skip("no memory limits here")
	}
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 256 << 20}})
	l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}})
	await := func(what string, right func(free int) bool) {
		t.Helper()
		begin, free := time.Now(), 0
		l.Poll(func() (err error) {
			free, err = strconv.Atoi(l.Sh(sb, "awk '/^MemFree/ { print int($2 / 1024) }' /proc/meminfo"))
			if err == nil && !right(free) {
				err = fmt.Errorf("%s: %d MiB are free", what, free)
			}
			return err
		})
		if took, limit := time.Since(begin), testenv.Scale(3*time.Second); took > limit {
			t.Errorf("%s: it took %s until %d MiB are free, want %s", what, took, free, limit)
		}
	}
	await("at first", func(free int) bool { return free > 230 && free <= 256 })
	l.Sh(sb, "head -c 100000000 /dev/zero > /dev/shm/much")
	await("with 95 MiB in use", func(free int) bool { return free < 165 })
	l.Sh(sb, "rm /dev/shm/much")
	await("afterwards", func(free int) bool { return free > 230 })
}

// Programs find the limits that a machine with Linux has.
func TestUsualLimits(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{})
	var files unix.Rlimit
	l.Must("getrlimit", unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	if got, want := l.Sh(sb, "ulimit -Sn; ulimit -Hn; ulimit -c"), fmt.Sprintf("1024\n%d\n0", min(1<<20, files.Max)); got != want {
		t.Errorf("open files, and core files: %q, want %q", got, want)
	}
	if !l.Info().Caps.MemoryLimit {
		return
	}
	sb = l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 1 << 30}})
	if got := l.Sh(sb, "stat -f -c '%b %S' /dev/shm | (read b s; echo $((b * s >> 20)))"); got != "512" {
		t.Errorf("/dev/shm has %s MiB", got)
	}
}

// A program that wants more memory than its sandbox may have dies alone, and its exit says why.
func TestOutOfMemory(t *testing.T) {
	l := newLab(t)
	needLimits(l)
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 64 << 20}})
	p := l.StartCommand(sb, &atoll.Command{Args: []string{"sleep", "1000"}})
	for _, script := range []string{"head -c 1000000000 /dev/zero | tail", "exec head -c 1000000000 /dev/zero > /dev/shm/file"} {
		hog := l.StartCommand(sb, &atoll.Command{Args: []string{"sh", "-c", script}})
		exit, err := hog.Wait(l.Context())
		l.Must("wait", err)
		if exit.Success() || exit.Code == 137 && !strings.Contains(exit.Reason, "out of memory: the sandbox used more than 64m") {
			t.Errorf("%s: %+v", script, exit)
		}
		l.Sh(sb, "rm -f /dev/shm/file")
	}
	l.Must("end the bystander", p.Signal(l.Context(), atoll.SIGTERM))
	if exit, err := p.Wait(l.Context()); err != nil || exit.Signal != atoll.SIGTERM {
		t.Errorf("a bystander ended by %+v, %v", exit, err)
	}
	if st := l.Status(sb); st.State != atoll.StateRunning {
		t.Errorf("the sandbox is %s (%s)", st.State, st.Reason)
	}
}

// A limit is refused if no sandbox could run within it, or if the machine does not have so much.
func TestLimitsOutOfRange(t *testing.T) {
	l := newLab(t)
	caps := l.Info().Caps
	for _, tt := range []struct {
		has    bool
		limits atoll.Resources
		says   string
	}{
		{caps.MemoryLimit, atoll.Resources{Memory: 1 << 20}, "too low; use at least"},
		{caps.CPULimit, atoll.Resources{CPUs: 0.001}, "CPU limit 0.001: use at least 0.01"},
		{caps.CPULimit, atoll.Resources{CPUs: 9999}, fmt.Sprintf("CPU limit 9999: this machine has %d", runtime.NumCPU())},
		{caps.ProcessLimit, atoll.Resources{Processes: 1}, "process limit 1: use at least"},
	} {
		if tt.has {
			_, err := l.Create(l.Context(), &atoll.Spec{Resources: tt.limits})
			supervisedtest.WantKind(t, tt.says, err, atoll.ErrInvalid, tt.says)
		}
	}
}

// A sandbox with the least limits starts, and runs a command.
func TestLeastLimits(t *testing.T) {
	l := newLab(t)
	needLimits(l)
	for _, limits := range []atoll.Resources{{Memory: 16 << 20}, {CPUs: 0.01}, {Processes: 4}} {
		sb := l.NewSandbox(atoll.Spec{Resources: limits})
		if got := l.Sh(sb, "echo works"); got != "works" {
			t.Errorf("%+v: %q", limits, got)
		}
		l.RemoveSandbox(sb)
	}
}

// needLimits skips the test where memory and CPUs cannot be limited.
func needLimits(l *lab) {
	l.T.Helper()
	if caps := l.Info().Caps; !caps.MemoryLimit || !caps.CPULimit {
		testenv.Need(l.T, testenv.Cgroups)
		l.T.Skip("an ordinary user has no writable cgroup here")
	}
}
