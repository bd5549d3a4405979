//go:build !unix

package mock

import (
	"errors"
	"os"
)

// duplicateFile fails: commands cannot run on this system.
func duplicateFile(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
