package vz

import (
	"os"

	"golang.org/x/sys/unix"
)

// punchHole frees the space of n bytes of file at offset off. Both are multiples of punchBlock.
func punchHole(file *os.File, off, n int64) error {
	return unix.FcntlFstore(file.Fd(), unix.F_PUNCHHOLE, &unix.Fstore_t{Offset: off, Length: n}) // begins as fpunchhole_t does
}
