package vz

import (
	"os"

	"golang.org/x/sys/unix"
)

// punchHole frees the space of n bytes of file at offset off. Both are multiples of punchBlock.
func punchHole(file *os.File, off, n int64) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}
