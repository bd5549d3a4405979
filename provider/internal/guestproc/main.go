package guestproc

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
)

// An Output is the recorded part of an output stream of a main process.
type Output interface {
	Status() atoll.StreamStatus
	Kept() []byte
}

// MainEnded returns nil if the sandbox has a main process that has ended. Kinds: ErrNotExist (there
// was none, or it runs).
func MainEnded(st *atoll.Status) error {
	if st.Exit == nil {
		return atoll.Errorf("process", st.ID, atoll.ErrNotExist, "sandbox has no ended main process")
	}
	return nil
}

// EndedMain returns the ended main process of a sandbox, with the recorded output. The caller has checked
// st with MainEnded.
func EndedMain(st *atoll.Status, stdout, stderr Output) (atoll.Process, atoll.ProcessStatus, error) {
	exit := *st.Exit
	exit.Duration = atoll.Duration(st.Stopped.Sub(st.Started))
	main := atoll.ProcessStatus{
		ID: atoll.MainProcess, Args: st.Spec.Cmd, User: st.Spec.User, TTY: st.Spec.TTY != nil, Started: st.Started, Exit: &exit,
		Stdout: stdout.Status(), Stderr: stderr.Status(),
	}
	p, err := process.Ended(main, stdout.Kept(), stderr.Kept()).Get(atoll.MainProcess)
	return p, main, err
}
