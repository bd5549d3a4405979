package vm

import (
	"context"
	"errors"
	"io"
	"syscall"
)

// PowerOff asks a guest of ours to power off, and returns when it does. Drivers whose
// hypervisor has no better way use it for Stop.
func PowerOff(ctx context.Context, m Machine) error {
	conn, err := m.Dial(ctx, PortPowerOff)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, err = io.Copy(io.Discard, conn) // it hangs up when it has heard
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}
