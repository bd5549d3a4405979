package supervisor

import "os"

// highFD is the number of a descriptor of /dev/null. Linux sizes a new process's table of
// descriptors by the highest open one, and a process with threads waits for 12 ms (as
// measured) when the table has to grow. gVisor's sentry would wait at its 64th descriptor.
const highFD = 255

// inheritedFDs are the descriptors that a supervisor gets on purpose; descriptorDir is the
// directory that lists all descriptors of this process.
var inheritedFDs = []int{jobFD, heldFD, highFD}

const descriptorDir = "/proc/self/fd"

// inheritedFiles returns the files that a supervisor inherits, from descriptor 3 on, with
// null at highFD.
func inheritedFiles(files []*os.File, null *os.File) []*os.File {
	all := make([]*os.File, highFD-2)
	copy(all, files)
	all[highFD-3] = null
	return all
}
