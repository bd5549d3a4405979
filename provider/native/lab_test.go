//go:build linux

package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native"
)

// A lab is a provider for one test, with the test's steps as methods.
type lab struct {
	*supervisedtest.Lab
	opts native.Options
}

// newLab opens a provider that is closed when the test ends; anything left then is an
// error.
func newLab(t testing.TB, change ...func(*native.Options)) *lab {
	t.Helper()
	needNative(t)
	opts := freshOptions(t)
	for _, f := range change {
		f(&opts)
	}
	return openLab(t, opts)
}

// openLab opens one more provider over the directories in opts.
func openLab(t testing.TB, opts native.Options) *lab {
	t.Helper()
	p, err := native.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &lab{&supervisedtest.Lab{Provider: p, Places: placesOf(opts), T: t}, opts}
}

func placesOf(opts native.Options) supervisedtest.Places {
	return supervisedtest.Places{Dir: opts.Dir, RunDir: opts.RunDir, Cgroup: opts.Cgroup}
}

// ownCgroup gives the sandboxes of a lab cgroups with names of their own, by which listLeft finds their processes.
func ownCgroup(name string) func(*native.Options) {
	return func(o *native.Options) { o.Cgroup += name + "-" }
}

// startProvider starts one of the programs, as another provider of the same sandboxes.
func (l *lab) startProvider(name string, args ...string) *exec.Cmd {
	l.T.Helper()
	cmd := supervisedtest.HostProgram(l.T, name, append(l.providerArgs(), args...)...)
	cmd.Stderr = &supervisedtest.Screen{}
	l.Must("start", cmd.Start())
	return cmd
}

// providerArgs returns the arguments from which openProgram makes the options of the lab's provider.
func (l *lab) providerArgs() []string {
	return []string{l.opts.Dir, l.opts.RunDir, l.opts.Helper, l.opts.Cgroup}
}

// openProgram opens the provider of lab.startProvider, and returns the rest of args.
func openProgram(args []string, change ...func(*native.Options)) (*native.Provider, []string, error) {
	opts := native.Options{Dir: args[0], RunDir: args[1], Helper: args[2], Cgroup: args[3]}
	for _, f := range change {
		f(&opts)
	}
	p, err := native.New(opts)
	return p, args[4:], err
}

// firstArgv0 is the name of first processes on the host.
const firstArgv0 = "atoll-init"

// firstProcess returns the PID on the host of the first process of a sandbox.
func (l *lab) firstProcess(sb atoll.Sandbox) int {
	l.T.Helper()
	children := supervisedtest.Children(l.T, l.SupervisorOf(sb))
	if children[firstArgv0] == 0 {
		l.T.Fatalf("the supervisor has the children %v", children)
	}
	return children[firstArgv0]
}

// sandboxProcesses returns the processes on the host of a sandbox whose commands are children of the first process.
func (l *lab) sandboxProcesses(sb atoll.Sandbox) map[string]int {
	l.T.Helper()
	first := l.firstProcess(sb)
	pids := supervisedtest.Children(l.T, first)
	pids["supervisor"], pids["first process"] = l.SupervisorOf(sb), first
	return pids
}

// listLeft lists what the lab's sandboxes have on this machine, besides files: processes, cgroups and mounts. It finds
// processes by the names of their cgroups.
func (l *lab) listLeft() (left []string) {
	l.T.Helper()
	for _, pid := range supervisedtest.ListProcesses(l.T) {
		if inCgroup(pid, l.opts.Cgroup) {
			left = append(left, fmt.Sprintf("process %d %q", pid, supervisedtest.CommandLine(pid)))
		}
	}
	for _, point := range l.listMounts() {
		left = append(left, "mount "+point)
	}
	return append(left, supervisedtest.ListCgroups(l.T, l.opts.Cgroup)...)
}

// inCgroup reports whether a process is in a cgroup whose name begins with prefix, or is a supervisor that is about to
// join one.
func inCgroup(pid int, prefix string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), "/"+prefix) || slices.ContainsFunc(supervisedtest.CommandLine(pid), func(arg string) bool {
		return strings.Contains(arg, "/"+prefix)
	})
}

// listMounts lists the mounts of this process that are in the lab's directories.
func (l *lab) listMounts() (points []string) {
	l.T.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	l.Must("read mounts", err)
	for line := range strings.Lines(string(data)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, l.opts.Dir+"/") || strings.HasPrefix(point, l.opts.RunDir+"/") {
			points = append(points, point)
		}
	}
	return points
}

// awaitNothing waits until nothing of the lab's sandboxes is left. A sweep may have to remove it.
func (l *lab) awaitNothing() {
	l.T.Helper()
	l.Poll(func() error {
		if left := append(l.listLeft(), l.ListFiles(l.T)...); len(left) > 0 {
			return fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// kill kills a process.
func (l *lab) kill(pid int) {
	l.T.Helper()
	l.Must("kill", unix.Kill(pid, unix.SIGKILL))
}
