package statedir

import "context"

// An Identity tells a process from all others that ever had its number.
type Identity struct {
	PID   int    `json:"pid,omitempty"`
	Start string `json:"start,omitempty"` // when it was started, as the system has it: on Linux in clock ticks since boot
	Boot  string `json:"boot,omitempty"`  // boot id
}

// Kill kills the process if it still is the one identified, and waits until it
// has ended or ctx has. A process that is gone is no error.
func (i Identity) Kill(ctx context.Context) error {
	if i.PID <= 1 {
		return nil
	}
	return i.killProcess(ctx)
}
