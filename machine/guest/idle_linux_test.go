package guest

import "testing"

// Processes that a service has started count as the service's, but not a container, whose shim is a
// child of the first process.
func TestBelow(t *testing.T) {
	const dockerd, containerd, proxy, shim, inside, orphan = 10, 11, 12, 20, 21, 30
	parents := map[int]int{dockerd: 1, containerd: dockerd, proxy: dockerd, shim: 1, inside: shim, orphan: 99}
	services := map[int]bool{dockerd: true}
	for pid, want := range map[int]bool{dockerd: true, containerd: true, proxy: true, shim: false, inside: false, orphan: false} {
		if got := isService(pid, services, parents); got != want {
			t.Errorf("below(%d) = %v, want %v", pid, got, want)
		}
	}
	parents[1] = inside // changed while it was read: it ends nevertheless
	if isService(inside, services, parents) {
		t.Error("a ring is below a service")
	}
}
