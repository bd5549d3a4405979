//go:build linux

package gvisor_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// TestDelegated runs a test of limits as an ordinary user who owns a cgroup.
func TestDelegated(t *testing.T) {
	name := fmt.Sprintf("atoll-test-user-%d", os.Getpid())
	supervisedtest.RunInGroups(t, name, "^TestCgroupsOfUser$", map[string]string{engineVar: helperPath(t)})
}

// The sandboxes of a user who owns a cgroup have theirs in it.
func TestCgroupsOfUser(t *testing.T) {
	l := newLab(t, func(o *gvisor.Options) { o.Cgroup += "user-" })
	caps := l.Info().Caps
	if os.Geteuid() == 0 || !caps.MemoryLimit {
		t.Skip("this is not an ordinary user with a cgroup")
	}
	if !caps.CPULimit {
		t.Error("no CPU limits")
	}
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Memory: 128 << 20, CPUs: 1}})
	if got := l.Sh(sb, "nproc; awk '/^MemTotal/ { print $2 / 1024 }' /proc/meminfo"); got != "1\n128" {
		t.Errorf("inside: %q", got)
	}
	hog := l.StartCommand(sb, &atoll.Command{Args: []string{"sh", "-c", "head -c 1000000000 /dev/zero | tail"}})
	if exit, err := hog.Wait(l.Context()); err != nil || exit.Success() {
		t.Errorf("a program that wants 1 GB: %+v, %v", exit, err)
	}
	if st := l.Status(sb); st.State != atoll.StateRunning {
		t.Errorf("the sandbox is %s (%s)", st.State, st.Reason)
	}
	l.RemoveSandbox(sb)
	l.Close() // and with it the spare supervisor
	l.Poll(func() error {
		if left := supervisedtest.ListCgroups(t, l.opts.Cgroup); len(left) > 0 {
			return fmt.Errorf("left behind: %s", left)
		}
		return nil
	})
}
