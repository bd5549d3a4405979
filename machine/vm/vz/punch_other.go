//go:build !linux && !darwin

package vz

import (
	"errors"
	"os"
)

func punchHole(*os.File, int64, int64) error { return errors.ErrUnsupported }
