package procgroup

import (
	"crypto/rand"
	"strings"
)

// A Mark is in the environment of a process and of its descendants. Nothing
// else on any machine has it, now or after a reboot, which cannot be said of a
// PID.
type Mark struct{ realm, sandbox, process string }

const markVar = "ATOLL_LOCAL_PROCESS="

// NewMark returns one for a process of a sandbox. The realm tells sandboxes of one id
// apart; it may be empty where there is only one.
func NewMark(realm, sandbox string) Mark {
	return Mark{realm, sandbox, strings.ToLower(rand.Text())}
}

// String is the variable.
func (m Mark) String() string { return markVar + m.realm + "." + m.sandbox + "/" + m.process }

// covers reports whether an environment, as the kernel shows it, has the mark;
// one without a process covers all of its sandbox.
func (m Mark) covers(environ string) bool {
	want := m.String()
	for kv := range strings.SplitSeq(environ, "\x00") {
		if kv == want || m.process == "" && strings.HasPrefix(kv, want) {
			return true
		}
	}
	return false
}
