//go:build unix

package statedir

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// killByPID is killProcess for systems where nothing pins a process: between the check and
// the signal, another process could get the number, if all numbers were used meanwhile.
func (i Identity) killByPID(ctx context.Context) error {
	for sent := false; ctx.Err() == nil; sent = true {
		if now, err := Identify(i.PID); err != nil || now != i {
			return nil
		}
		if !sent {
			if err := syscall.Kill(i.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill %d: %w", i.PID, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	return ctx.Err()
}
