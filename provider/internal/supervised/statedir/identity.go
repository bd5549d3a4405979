package statedir

import "context"

// An Identity distinguishes a process from all others that ever had its number.
type Identity struct {
	PID   int    `json:"pid,omitempty"`
	Start string `json:"start,omitempty"` // its start time, in the system's unit: on Linux in clock ticks since boot
	Boot  string `json:"boot,omitempty"`  // boot id
}

// Kill kills the process if it still is the identified one, and waits until it has ended or
// ctx has. It returns nil if the process has gone.
func (i Identity) Kill(ctx context.Context) error {
	if i.PID <= 1 {
		return nil
	}
	return i.killProcess(ctx)
}
