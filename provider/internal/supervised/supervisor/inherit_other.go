//go:build unix && !linux

package supervisor

import "os"

// inheritedFDs are the descriptors that a supervisor is given on purpose, and descriptors is
// the directory that shows all that a process has.
var inheritedFDs = []int{jobFD, heldFD}

const descriptorDir = "/dev/fd"

func inheritedFiles(files []*os.File, _ *os.File) []*os.File { return files }
