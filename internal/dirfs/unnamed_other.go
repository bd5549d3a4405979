//go:build !linux

package dirfs

import (
	"errors"
	"os"
)

func openUnnamed(tree) (*os.File, error) { return nil, errors.ErrUnsupported }

func giveName(*os.File, tree, string) error { return errors.ErrUnsupported }
