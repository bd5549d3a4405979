//go:build linux

package gvisor_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// Sandboxes with the same id, in two state directories, are independent.
func TestSameIDTwice(t *testing.T) {
	var boxes []atoll.Sandbox
	for range 2 {
		l := newLab(t, func(o *gvisor.Options) { o.Cgroup = "" })
		boxes = append(boxes, l.NewSandbox(atoll.Spec{ID: "0000000000004000800000000000007e"}))
	}
	if err := boxes[0].Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove of the first: %v", err)
	}
	if err := atoll.Run(t.Context(), boxes[1], &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Errorf("a command in the second: %v", err)
	}
	if err := boxes[1].Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove of the second: %v", err)
	}
}
