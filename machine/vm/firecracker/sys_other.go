//go:build !linux

package firecracker

import (
	"context"
	"errors"
	"net"
	"os/exec"
)

// Firecracker runs only on Linux: New returns no machines elsewhere.

var (
	errNoListener = errors.New("nobody listens on the socket")
	errLinux      = errors.New("this system has no KVM")
)

func dialSocket(context.Context, string, string) (net.Conn, error) { return nil, errLinux }

func setNewPIDNamespace(*exec.Cmd) {}

func tryKVM(string) error { return errLinux }
