//go:build linux

// Package quota limits what the files below a directory take up on disk, with the project quotas of ext4 and XFS. The file
// system must be mounted with the option prjquota.
package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's API; see quotactl_fd(2), linux/dqblk_xfs.h and linux/fs.h.
const (
	projectQuota = 2

	getState = 0x5808 // Q_XGETQSTATV
	getQuota = 0x5803 // Q_XGETQUOTA
	setLimit = 0x5804 // Q_XSETQLIM

	stateVersion  = 1
	projectLimits = 1<<4 | 1<<5 // FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD

	quotaVersion  = 1
	projectRecord = 2      // FS_PROJ_QUOTA
	hardLimit     = 1 << 3 // FS_DQ_BHARD
	blockSize     = 512

	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritFlag   = 0x200      // FS_XFLAG_PROJINHERIT
)

// A quotaState is struct fs_quota_statv.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       [156]byte
}

// A quotaRecord is struct fs_disk_quota.
type quotaRecord struct {
	version int8
	flags   int8
	fields  uint16 // that a call sets
	id      uint32
	blocks  uint64 // the most that the files may take up
	_       [4]uint64
	inodes  uint64 // in use
	_       [56]byte
}

// fileAttributes is struct fsxattr.
type fileAttributes struct {
	flags, _, _, project, _ uint32
	_                       [8]byte
}

// Works reports whether the file system of a directory, which need not exist yet, limits what projects of files take up.
func Works(dir string) bool {
	f, err := os.Open(dir)
	if up := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && up != dir {
		return Works(up)
	}
	if err != nil {
		return false
	}
	defer f.Close()
	state := quotaState{version: stateVersion}
	return controlQuota(f, getState, 0, unsafe.Pointer(&state)) == nil && state.flags&projectLimits == projectLimits
}

// Limit makes an empty directory, and all files that are made below it, a project of at most that many bytes. If the directory is a
// project, its limit changes. It needs CAP_SYS_ADMIN.
func Limit(dir string, bytes int64) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var attributes fileAttributes
	if err := callFile(f, getAttributes, &attributes); err != nil {
		return err
	}
	if attributes.flags&inheritFlag != 0 && attributes.project != 0 {
		return setHardLimit(f, attributes.project, bytes)
	}
	id, release, err := claimProject(f)
	if err != nil {
		return err
	}
	defer release()
	if err := setHardLimit(f, id, bytes); err != nil {
		return err
	}
	attributes.project = id
	attributes.flags |= inheritFlag
	return callFile(f, setAttributes, &attributes) // the directory itself takes up some of it, so the project is in use
}

// Projects of sandboxes have ids between these, where administrators rarely have theirs.
const firstProject, projects = 0x5a00_0000, 0x0100_0000

// claimProject returns the id of a project that has no files. No other process gets it until release.
func claimProject(f *os.File) (id uint32, release func(), err error) {
	for range 1000 {
		id = firstProject + rand.Uint32N(projects)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@atoll-project-%d", id), Net: "unix"})
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, nil, fmt.Errorf("claim a project: %w", err)
		}
		record := quotaRecord{version: quotaVersion}
		err = controlQuota(f, getQuota, id, unsafe.Pointer(&record))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || err == nil && record.inodes == 0 {
			return id, func() { _ = l.Close() }, nil
		}
		_ = l.Close()
		if err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, errors.New("claim a project: all are in use")
}

func setHardLimit(f *os.File, id uint32, bytes int64) error {
	record := quotaRecord{version: quotaVersion, flags: projectRecord, fields: hardLimit, id: id, blocks: uint64(bytes+blockSize-1) / blockSize}
	return controlQuota(f, setLimit, id, unsafe.Pointer(&record))
}

// controlQuota calls quotactl_fd for the project with that id.
func controlQuota(f *os.File, command int, id uint32, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(command<<8|projectQuota), uintptr(id), uintptr(data), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl", errno)
	}
	return nil
}

// callFile calls ioctl for the attributes of a file.
func callFile(f *os.File, request uint, attributes *fileAttributes) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(unsafe.Pointer(attributes)))
	if errno != 0 {
		return fmt.Errorf("project of %s: %w", f.Name(), errno)
	}
	return nil
}
