package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A scratch is the folder of one check.
type scratch struct {
	dir string
	tmp string // the folder for temporary files of tests, in which the check looks for files that a test forgets
	why string // tmp is on disk; "" if it is in memory
}

// openScratch makes the folder, and sets TMPDIR for all programs that the check starts. Temporary files
// are in memory if there is enough: the tests write many, and wait for the disk after each fsync. To
// mount tmp, openScratch may replace this process by one in a mount namespace of its own, so that
// nothing stays mounted after the check, however it ends.
func openScratch() (*scratch, error) {
	s := &scratch{}
	if s.dir = os.Getenv(scratchVar); s.dir == "" {
		dir, err := os.MkdirTemp("/tmp", "at.") // sockets need a short path
		if err != nil {
			return nil, err
		}
		s.dir, s.tmp = dir, filepath.Join(dir, "t")
		if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(s.tmp, 0o755), os.Chmod(s.tmp, os.ModeSticky|0o777)); err != nil {
			return nil, err
		}
		if err := mountMemory(s); err != nil { // it does not return if it succeeds
			s.why = err.Error()
		}
	}
	s.tmp = filepath.Join(s.dir, "t")
	err := errors.Join(os.Unsetenv(scratchVar), os.Setenv("TMPDIR", s.tmp))
	if s.why == "" {
		disk := filepath.Join(s.dir, "d")
		err = errors.Join(err, os.Mkdir(disk, 0o755), os.Setenv("CHECK_DISK", disk)) // for testenv.DiskDir
	}
	return s, err
}

// scratchVar passes the folder to the process that replaces this one.
const scratchVar = "CHECK_SCRATCH"

// describePlace says where temporary files are.
func (s *scratch) describePlace() string {
	if s.why != "" {
		return "temporary files are on disk: " + s.why
	}
	return fmt.Sprintf("temporary files are in memory, up to %d GiB", memoryLimit>>30)
}
