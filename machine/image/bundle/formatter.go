package bundle

import (
	"os/exec"
	"path/filepath"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// formatter is the program of this machine that formats disks.
const formatter = "mke2fs"

// formatterDirs lists its directories outside PATH: those that only root's PATH has, and
// those of Homebrew.
var formatterDirs = []string{"/usr/sbin", "/sbin", "/opt/homebrew/opt/e2fsprogs/sbin", "/usr/local/opt/e2fsprogs/sbin"}

// FormatterPackage is the package of the formatter in Debian and in Homebrew.
const FormatterPackage = "e2fsprogs"

// FixFormatter says how to install the formatter.
const FixFormatter = "apt-get install " + FormatterPackage + ", or brew install " + FormatterPackage

// FindFormatter returns the path of mke2fs on this machine. Kinds: ErrUnavailable.
func FindFormatter() (string, error) {
	path, err := exec.LookPath(formatter)
	for _, dir := range formatterDirs {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, formatter))
		}
	}
	if err != nil {
		return "", vm.MissingProgram("mke2fs", "", "%s is not installed: %s", formatter, FixFormatter)
	}
	return path, nil
}
