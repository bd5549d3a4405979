package supervisor

import "os"

// highFD is a descriptor of nothing, whose number matters: Linux gives a new
// process a table of descriptors for the highest that is open, and lets a
// process with threads wait, for 12 ms as measured, when it has to make the
// table larger. gVisor's sentry would have to, with its 64th descriptor.
const highFD = 255

// inheritedFDs are the descriptors that a supervisor is given on purpose, and descriptors is
// the directory that shows all that a process has.
var inheritedFDs = []int{jobFD, heldFD, highFD}

const descriptorDir = "/proc/self/fd"

func inheritedFiles(files []*os.File, null *os.File) []*os.File {
	all := make([]*os.File, highFD-2)
	copy(all, files)
	all[highFD-3] = null
	return all
}
