//go:build linux

package vfork

import (
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
)

// A child is cloned into a group of cgroup v2, without a move.
func TestRunInGroup(t *testing.T) {
	for _, root := range []string{cgroup.Root, cgroup.Root + "/unified"} {
		h := cgroup.Open(root)
		if _, err := os.Stat(root + "/cgroup.controllers"); err != nil || !h.FindBase().Freeze {
			continue
		}
		g := h.Group("/atoll-test-vfork")
		if err := g.Make(cgroup.Limits{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
		inside, err := g.MakeInside(0)
		if err != nil {
			t.Fatal(err)
		}
		s := newScript(t)
		s.Clone("clone", 0) // the second process is in the group, too
		r := addCommand(t, s, "/bin/cat", "/proc/self/cgroup")
		var got string
		err = inside.Clone(func(dir *os.File) error {
			got, _ = runScript(t, s, r, dir)
			return nil
		})
		if err != nil || !strings.HasSuffix(got, "::/atoll-test-vfork/inside") {
			t.Errorf("the child is in the groups\n%s, %v", got, err)
		}
		return
	}
	t.Skip("needs a writable mount of cgroup2")
}
