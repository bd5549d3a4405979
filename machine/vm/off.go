package vm

import (
	"context"
	"errors"
	"io"
	"syscall"
)

// PowerOff asks an Atoll guest to power off, and returns when the guest has received that. Drivers
// use it for Stop if their hypervisor has no better way.
func PowerOff(ctx context.Context, m Machine) error {
	conn, err := m.Dial(ctx, PortPowerOff)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, err = io.Copy(io.Discard, conn) // the guest hangs up when it has received the request
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}
