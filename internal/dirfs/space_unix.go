//go:build linux || darwin

package dirfs

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// spaceOf returns the space of the file system that has an open file.
func spaceOf(file *os.File) (atoll.Space, error) {
	var st unix.Statfs_t
	if err := retryFstatfs(file, &st); err != nil {
		return atoll.Space{}, err
	}
	size := uint64(st.Bsize)
	return atoll.Space{
		Total: atoll.Bytes(st.Blocks * size), Free: atoll.Bytes(st.Bfree * size), Available: atoll.Bytes(st.Bavail * size),
		Files: int64(st.Files), FilesFree: int64(st.Ffree),
	}, nil
}

// retryFstatfs calls fstatfs until no signal interrupts it.
func retryFstatfs(file *os.File, st *unix.Statfs_t) error {
	for {
		if err := unix.Fstatfs(int(file.Fd()), st); err != unix.EINTR {
			return err
		}
	}
}
