//go:build unix && !linux

package supervisor

import "os"

// inheritedFDs are the descriptors that a supervisor gets on purpose; descriptorDir is the
// directory that lists all descriptors of this process.
var inheritedFDs = []int{jobFD, heldFD}

const descriptorDir = "/dev/fd"

func inheritedFiles(files []*os.File, _ *os.File) []*os.File { return files }
