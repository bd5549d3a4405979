// Package program finds the programs beside atoll: its server, and plugins.
package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/seed46cd37a8/atoll"
)

// fileName returns the name of the file of a program.
func fileName(name string) string {
	if runtime.GOOS == "windows" {
		return "atoll-" + name + ".exe"
	}
	return "atoll-" + name
}

// Find returns the path of the program atoll-NAME: the file beside this program's own, or the one in PATH. Kinds:
// ErrUnavailable (there is none).
func Find(name string) (string, error) {
	file := fileName(name)
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		if path := filepath.Join(filepath.Dir(exe), file); isProgram(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(file)
	if err != nil {
		missing := MissingError{name}
		return "", atoll.Errorf("open", name, atoll.ErrUnavailable, "%w: %s", missing, missing.Fix())
	}
	return filepath.Abs(path)
}

// A MissingError says that there is no program atoll-NAME.
type MissingError struct{ Name string }

// Error implements error.
func (e MissingError) Error() string {
	return "the program " + fileName(e.Name) + " is neither beside atoll nor in PATH"
}

// Fix says how to get the program.
func (e MissingError) Fix() string {
	return "put " + fileName(e.Name) + " there: make build and make install do, for those that belong to atoll"
}

// isProgram reports whether path is a file that can be executed.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && (info.Mode()&0o111 != 0 || runtime.GOOS == "windows")
}
