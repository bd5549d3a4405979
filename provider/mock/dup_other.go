//go:build !unix

package mock

import (
	"errors"
	"os"
)

// dup is not supported: commands cannot be run on this system.
func dup(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
