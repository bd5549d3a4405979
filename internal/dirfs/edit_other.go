//go:build !unix

package dirfs

import (
	"errors"
	"os"

	"github.com/seed46cd37a8/atoll"
)

// setFileTimes changes the times of an open file.
func setFileTimes(*os.File, atoll.FileTimes) error { return errors.ErrUnsupported }

// setLinkTimes changes the times of a link itself.
func setLinkTimes(tree, string, atoll.FileTimes) error { return errors.ErrUnsupported }
