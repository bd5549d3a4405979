package statedir

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// unclean is the error of a damaged file system.
const unclean = windows.ERROR_FILE_CORRUPT

// defaultRunBase returns the directory of run directories without XDG_RUNTIME_DIR: the
// temporary directory, which is the user's own.
func defaultRunBase() string { return filepath.Join(os.TempDir(), "atoll") }
