package tarstream

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// seekExtents asks the file system.
func seekExtents(file *os.File, size int64) ([]Extent, error) {
	var data []Extent
	for at := int64(0); at < size; {
		start, err := file.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && start >= size {
			break
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil, errUnknown
		}
		if err != nil {
			return nil, err
		}
		end, err := file.Seek(start, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) {
			break // just cut off
		}
		if err != nil {
			return nil, err
		}
		end = min(end, size)
		data = append(data, Extent{start, end - start})
		at = end
	}
	if len(data) == 1 && data[0].Length == size {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err == nil && size-st.Blocks*512 >= minHole {
			return nil, errUnknown // a file system that names no holes
		}
	}
	return data, nil
}
