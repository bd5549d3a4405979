package guestproc

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// An Output is what is kept of a stream that a main process has written.
type Output interface {
	Status() atoll.StreamStatus
	Kept() []byte
}

// MainEnded reports whether a sandbox has a main process that has ended. Kinds: ErrNotExist
// (there was none, or it runs).
func MainEnded(st *atoll.Status) error {
	if st.Exit == nil {
		return atoll.Errorf("process", st.ID, atoll.ErrNotExist, "it has no main process that has ended")
	}
	return nil
}

// Main is the main process of a sandbox, for which MainEnded is nil, as it is remembered.
func Main(st *atoll.Status, stdout, stderr Output) (atoll.Process, atoll.ProcessStatus, error) {
	exit := *st.Exit
	exit.Duration = atoll.Duration(st.Stopped.Sub(st.Started))
	main := atoll.ProcessStatus{
		ID: atoll.MainProcess, Args: st.Spec.Cmd, User: st.Spec.User, TTY: st.Spec.TTY != nil, Started: st.Started, Exit: &exit,
		Stdout: stdout.Status(), Stderr: stderr.Status(),
	}
	p, err := process.Ended(main, stdout.Kept(), stderr.Kept()).Get(atoll.MainProcess)
	return p, main, err
}
