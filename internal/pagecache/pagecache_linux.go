package pagecache

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Load reads a file into memory in pages as large as its file system and the kernel allow, unless all of it is there. It
// blocks while it reads. An error only says that programs start slower, as on kernels before 6.5.
func Load(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	var cached unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: uint64(size)}, &cached, 0); err != nil {
		return os.NewSyscallError("cachestat", err)
	}
	if int64(cached.Cache)*int64(os.Getpagesize()) >= size {
		return nil
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { _ = unix.Munmap(data) }()
	if err := unix.Madvise(data, unix.MADV_HUGEPAGE); err != nil {
		return os.NewSyscallError("madvise", err)
	}
	return os.NewSyscallError("madvise", unix.Madvise(data, unix.MADV_POPULATE_READ))
}

// Reload is Load of the file at path, after the system has dropped the pages of it that no process uses.
func Reload(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = errors.Join(f.Sync(), os.NewSyscallError("fadvise", unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)))
	return errors.Join(err, Load(f))
}
