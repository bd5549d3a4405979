//go:build linux

package microvm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// Memory that a guest has used and freed returns to the host, without a stop.
func TestMemoryIsGivenBack(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{})
	const used = 100 << 20
	before := resident(t, machineOf(t, sb))
	l.sh(sb, fmt.Sprintf("head -c %d /dev/zero | tail >/dev/null", used)) // which keeps all of it: there is no line
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		now := resident(t, machineOf(t, sb))
		if now < before+used/2 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the machine has %d MiB, and had %d before something used %d in it", now>>20, before>>20, used>>20)
		}
	}
}

// resident returns the memory of a process, in bytes.
func resident(t testing.TB, pid int) (n int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nRss:")
	if _, err := fmt.Sscanf(rest, "%d kB", &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}
