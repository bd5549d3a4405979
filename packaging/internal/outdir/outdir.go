// Package outdir protects directories that programs replace with their output.
package outdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Check returns an error unless dir is missing, is empty, or has a file that earlier output has. kind names the
// output for the error, such as "site".
func Check(dir, kind, file string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, file))
	}
	if err != nil {
		return fmt.Errorf("%s is not a %s that this command made: remove it, or set -o: %w", dir, kind, err)
	}
	return nil
}
