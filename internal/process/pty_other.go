//go:build !unix

package process

import (
	"errors"
	"os"

	"github.com/seed46cd37a8/atoll"
)

func openPTY() (master, replica *os.File, err error) { return nil, nil, errors.ErrUnsupported }

func setSize(*os.File, atoll.Size) error { return errors.ErrUnsupported }

// TerminalSize is not supported on this system.
func TerminalSize(*os.File) (atoll.Size, error) { return atoll.Size{}, errors.ErrUnsupported }
