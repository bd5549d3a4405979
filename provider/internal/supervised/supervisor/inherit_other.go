//go:build unix && !linux

package supervisor

import "os"

// given are the descriptors that a keeper is given on purpose, and descriptors is
// the directory that shows all that a process has.
var given = []int{jobFD, heldFD}

const descriptors = "/dev/fd"

func inherited(files []*os.File, _ *os.File) []*os.File { return files }
