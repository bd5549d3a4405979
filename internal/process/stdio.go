package process

import (
	"os"

	"github.com/seed46cd37a8/atoll"
)

// Stdio has a child's ends of its three streams, in blocking mode. For a process with a
// terminal all three are the same file.
type Stdio struct{ Stdin, Stdout, Stderr *os.File }

// stdioEnds has both ends of a process's stdio.
type stdioEnds struct {
	child  Stdio
	in     *os.File // nil if the process has no input
	out    *os.File // with a terminal: its master, for all three
	err    *os.File // nil with a terminal
	master bool
}

// newEnds creates pipes, or a terminal, for cmd. A remote process gets pipes in any case.
func (t *Table) newEnds(cmd *atoll.Command, remote bool) (*stdioEnds, error) {
	e := &stdioEnds{}
	var err error
	if cmd.TTY != nil && !remote {
		open := openPTY
		if t.OpenTerminal != nil {
			open = t.OpenTerminal
		}
		err = e.openTerminal(open, *cmd.TTY)
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
	// Fd sets a descriptor to blocking mode, which a child expects.
	e.child.Stdin.Fd()
	e.child.Stdout.Fd()
	e.child.Stderr.Fd()
	return e, nil
}

func (e *stdioEnds) openTerminal(open func() (master, replica *os.File, err error), size atoll.Size) error {
	master, replica, err := open()
	if err != nil {
		return err
	}
	e.master = true
	e.in, e.out = master, master
	e.child = Stdio{replica, replica, replica}
	return setSize(master, size)
}

func (e *stdioEnds) openPipes(stdin bool) (err error) {
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
func (e *stdioEnds) closeChild() {
	closeFiles(e.child.Stdin)
	if !e.master {
		closeFiles(e.child.Stdout, e.child.Stderr)
	}
}

// closeAll closes both sides.
func (e *stdioEnds) closeAll() {
	e.closeChild()
	closeFiles(e.out, e.err)
	if !e.master {
		closeFiles(e.in)
	}
}

// closeFiles closes the files that are not nil, and ignores errors: nobody can act on them.
func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
