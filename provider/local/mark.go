package local

import (
	"crypto/rand"
	"strings"
)

// A mark is in the environment of a process and of its descendants. Nothing
// else on any machine has it, now or after a reboot, which cannot be said of a
// PID.
type mark struct{ sandbox, process string }

const markVar = "ATOLL_LOCAL_PROCESS="

func newMark(sandbox string) mark { return mark{sandbox, strings.ToLower(rand.Text())} }

// String is the variable.
func (m mark) String() string { return markVar + m.sandbox + "/" + m.process }

// covers reports whether an environment, as the kernel shows it, has the mark;
// one without a process covers all of its sandbox.
func (m mark) covers(environ string) bool {
	want := m.String()
	for kv := range strings.SplitSeq(environ, "\x00") {
		if kv == want || m.process == "" && strings.HasPrefix(kv, want) {
			return true
		}
	}
	return false
}
