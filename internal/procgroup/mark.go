package procgroup

import (
	"crypto/rand"
	"strings"
)

// A Mark identifies a process and its descendants by a variable in their environment.
// Unlike a PID, it is unique on all machines and across reboots.
type Mark struct{ realm, sandbox, process string }

const markVar = "ATOLL_LOCAL_PROCESS="

// NewMark returns a new Mark for a process of a sandbox. The realm distinguishes sandboxes
// with equal ids; it may be empty if ids are unique.
func NewMark(realm, sandbox string) Mark {
	return Mark{realm, sandbox, strings.ToLower(rand.Text())}
}

// String returns the variable, "NAME=value".
func (m Mark) String() string { return markVar + m.realm + "." + m.sandbox + "/" + m.process }

// coversEnviron reports whether an environment, in the kernel's format, has the mark. A
// Mark without a process covers all processes of its sandbox.
func (m Mark) coversEnviron(environ string) bool {
	want := m.String()
	for kv := range strings.SplitSeq(environ, "\x00") {
		if kv == want || m.process == "" && strings.HasPrefix(kv, want) {
			return true
		}
	}
	return false
}
