//go:build linux

// Package engineprogram has the programs of supervisors inside, cmd/atoll-engine and cmd/atoll-native, if it is built with the
// tag embedengine. Programs that link it start sandboxes without linking what runs in their processes, such as gVisor.
package engineprogram

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/pagecache"
)

const (
	unusedTime = 7 * 24 * time.Hour // after it, another version removes a file
	noteTime   = time.Hour          // how exactly the time of the last use is known
)

// writable are the bits of a mode that an executable must not have.
const writable = 0o022

// A packedProgram is an executable in compressed form.
type packedProgram struct {
	name string // of its file
	data []byte // zstd
	sum  string // SHA-256 of the executable, in hex
}

// An executable is an open file with a lock, so that no other version removes it.
type executable struct {
	path string
	file *os.File
}

// hasFile reports whether the path still leads to the file. Somebody may have removed it.
func (e *executable) hasFile() bool {
	_, err := os.Stat(e.path)
	return err == nil
}

// openFile returns the executable. It is in a file below dir, which openFile writes if it does not exist, and whose owner and
// mode it checks if it does; or only in memory, if nothing below dir may be executed.
func (p packedProgram) openFile(dir string) (*executable, error) {
	if len(p.data) == 0 {
		return nil, errors.New("this program was built without " + p.name)
	}
	path := filepath.Join(dir, p.sum, p.name)
	for range 3 { // another version may remove it between two steps
		f, err := openLocked(path)
		if err == nil {
			_ = pagecache.Load(f)
			return &executable{path, f}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		data, err := p.unpackData()
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if isNoExec(dir) {
			return openMemory(p.name, data)
		}
		p.removeOthers(dir)
		if err := writeProgram(path, data); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: another program removes it", path)
}

// openLocked opens an executable file with a shared lock. It returns fs.ErrNotExist if another version removes the file.
func openLocked(path string) (*os.File, error) {
	f, err := fsutil.OpenOwned("start", path, writable)
	if err != nil {
		return nil, err
	}
	if err := fsutil.Flock(f, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, fsutil.ErrLocked) {
			err = fs.ErrNotExist
		}
		return nil, err
	}
	if info, err := f.Stat(); err == nil && time.Since(info.ModTime()) > noteTime {
		_ = os.Chtimes(path, time.Time{}, time.Now()) // otherwise another version may remove the file sooner
	}
	return f, nil
}

// unpackData returns the executable, which it has verified.
func (p packedProgram) unpackData() ([]byte, error) {
	r, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := r.DecodeAll(p.data, nil)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", p.name, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.sum {
		return nil, fmt.Errorf("unpack %s: this copy of atoll is damaged: install it again", p.name)
	}
	return data, nil
}

// writeProgram writes an executable file in one step.
func writeProgram(path string, data []byte) error {
	syscall.ForkLock.RLock() // a program that starts meanwhile would have the file open for writing, and nothing could execute it
	defer syscall.ForkLock.RUnlock()
	part := filepath.Join(filepath.Dir(path), atoll.TempName())
	defer os.Remove(part)
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o555)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// isNoExec reports whether the file system of dir does not execute files.
func isNoExec(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}

// leastFD keeps the descriptor of a file in memory clear of those that supervisors inherit.
const leastFD = 320

// openMemory returns an executable that is a sealed file in memory.
func openMemory(name string, data []byte) (*executable, error) {
	syscall.ForkLock.RLock() // as in writeProgram
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	read, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // nothing can execute f, which is open for writing
	if err != nil {
		return nil, err
	}
	defer read.Close()
	high, err := unix.FcntlInt(read.Fd(), unix.F_DUPFD_CLOEXEC, leastFD)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &executable{fmt.Sprintf("/proc/self/fd/%d", high), os.NewFile(uintptr(high), name)}, nil
}

// removeOthers removes the files of other versions below dir that no program uses or has used for a while. Running
// sandboxes do not need theirs.
func (p packedProgram) removeOthers(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // they only take space
	}
	for _, e := range entries {
		if e.Name() != p.sum && p.isUnused(filepath.Join(dir, e.Name())) {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// isUnused reports whether the directory of a version can be removed.
func (p packedProgram) isUnused(dir string) bool {
	f, err := os.Open(filepath.Join(dir, p.name))
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.Open(dir) // its first program was killed, or is about to write the file
	}
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	return err == nil && time.Since(info.ModTime()) > unusedTime && fsutil.Flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil
}
