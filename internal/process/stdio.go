package process

import (
	"os"

	"github.com/seed46cd37a8/atoll"
)

// Stdio is a child's end of its three streams, in blocking mode. For a process
// with a terminal all three are the same file.
type Stdio struct{ Stdin, Stdout, Stderr *os.File }

// ends are both ends of a process's stdio.
type ends struct {
	child  Stdio
	in     *os.File // nil when the process reads end of file
	out    *os.File // the terminal's master, for all three
	err    *os.File // nil with a terminal
	master bool
}

// newEnds makes pipes, or a terminal, for cmd. That of a remote process is not
// here.
func newEnds(cmd *atoll.Command, remote bool) (*ends, error) {
	e := &ends{}
	var err error
	if cmd.TTY != nil && !remote {
		err = e.openTerminal(*cmd.TTY)
	} else {
		err = e.openPipes(cmd.Stdin != nil || cmd.OpenStdin || cmd.TTY != nil)
	}
	if err != nil {
		e.closeAll()
		return nil, err
	}
	if remote {
		return e, nil
	}
	// Fd puts a descriptor back to blocking mode, which is what a child expects.
	e.child.Stdin.Fd()
	e.child.Stdout.Fd()
	e.child.Stderr.Fd()
	return e, nil
}

func (e *ends) openTerminal(size atoll.Size) error {
	master, replica, err := openPTY()
	if err != nil {
		return err
	}
	e.master = true
	e.in, e.out = master, master
	e.child = Stdio{replica, replica, replica}
	return setSize(master, size)
}

func (e *ends) openPipes(stdin bool) (err error) {
	if stdin {
		e.child.Stdin, e.in, err = os.Pipe()
	} else {
		e.child.Stdin, err = os.Open(os.DevNull)
	}
	if err != nil {
		return err
	}
	if e.out, e.child.Stdout, err = os.Pipe(); err != nil {
		return err
	}
	e.err, e.child.Stderr, err = os.Pipe()
	return err
}

// closeChild closes this side's copies of the child's ends.
func (e *ends) closeChild() {
	closeFiles(e.child.Stdin)
	if !e.master {
		closeFiles(e.child.Stdout, e.child.Stderr)
	}
}

// closeAll closes both sides.
func (e *ends) closeAll() {
	e.closeChild()
	closeFiles(e.out, e.err)
	if !e.master {
		closeFiles(e.in)
	}
}

// closeFiles closes the files that are not nil; there is nothing to be done
// about a pipe that fails to close.
func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
