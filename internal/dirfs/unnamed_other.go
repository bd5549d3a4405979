//go:build !linux

package dirfs

import (
	"errors"
	"os"
)

func openUnnamed(*os.Root) (*os.File, error) { return nil, errors.ErrUnsupported }

func giveName(*os.File, *os.Root, string) error { return errors.ErrUnsupported }
