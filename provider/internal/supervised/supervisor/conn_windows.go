package supervisor

import (
	"errors"
	"os"
	"os/exec"

	"github.com/seed46cd37a8/atoll"
)

// canRemoveItself is false: a supervisor has files of its sandbox's directory open, and
// Windows cannot rename such a directory. The sweep of a provider removes it later.
const canRemoveItself = false

// Start starts cmd, which sets only arguments and attributes, as a supervisor. held must be
// nil: on Windows a supervisor cannot inherit a file.
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

// openJobConn returns the connection on which the job comes: the process's standard
// streams, which nothing else can use afterwards.
func openJobConn() (Conn, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := newPipeConn(os.Stdin, os.Stdout)
	os.Stdin, os.Stdout = null, null
	return l, nil
}
