package statedir

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// unclean is the error of a file system that is damaged.
const unclean = windows.ERROR_FILE_CORRUPT

// defaultRunBase is where run directories are that no variable places: the directory for
// temporary files is the user's own.
func defaultRunBase() string { return filepath.Join(os.TempDir(), "atoll") }
