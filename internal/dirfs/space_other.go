//go:build !linux && !darwin

package dirfs

import (
	"errors"
	"os"

	"github.com/seed46cd37a8/atoll"
)

// spaceOf returns the space of the file system that has an open file.
func spaceOf(*os.File) (atoll.Space, error) { return atoll.Space{}, errors.ErrUnsupported }
