package supervisor

import (
	"errors"
	"os"
	"os/exec"

	"github.com/seed46cd37a8/atoll"
)

// canRemoveItself is false: a supervisor has files of its sandbox's directory open, which
// cannot be renamed then. The sweep of a provider removes what a supervisor has left.
const canRemoveItself = false

// Start starts cmd, which has nothing but its arguments and attributes, as a supervisor. It
// can inherit nothing that is to be held.
func Start(cmd *exec.Cmd, held *os.File) (Conn, error) {
	if held != nil {
		return nil, atoll.Errorf("start", "", atoll.ErrUnsupported, "a supervisor cannot hold %s on this system", held.Name())
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirIn.Close()
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		ourOut.Close()
		return nil, err
	}
	defer theirOut.Close()
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, ourIn.Close(), ourOut.Close())
	}
	return newPipeConn(ourIn, ourOut), nil
}

// openJobConn takes what this process was started with, and returns the line on which the
// job comes. Nothing else gets at its ends.
func openJobConn() (Conn, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := newPipeConn(os.Stdin, os.Stdout)
	os.Stdin, os.Stdout = null, null
	return l, nil
}
