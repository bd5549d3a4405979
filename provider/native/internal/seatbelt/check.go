package seatbelt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Program makes the walls. Every Mac has it.
const Program = "/usr/bin/sandbox-exec"

// Check makes a wall and tests it from inside: programs run, they write in their own directory, and they can neither read nor write
// beside it, nor connect to a port of this machine. dir is an empty directory, as Resolve returns it. run runs a command behind the
// wall of a profile; its error says that the command failed.
func Check(ctx context.Context, dir string, run func(ctx context.Context, profile string, args ...string) error) error {
	work, secret, escaped := filepath.Join(dir, "work"), filepath.Join(dir, "secret"), filepath.Join(dir, "escaped")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		return err
	}
	profile, err := Policy{Write: []string{work}}.Profile()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	if err := run(ctx, profile, "/usr/bin/true"); err != nil {
		return fmt.Errorf("no program starts behind the wall: %w", err)
	}
	if err := run(ctx, profile, "/usr/bin/touch", filepath.Join(work, "file")); err != nil {
		return fmt.Errorf("programs cannot write in their own directory: %w", err)
	}
	for _, c := range []struct {
		hole string
		args []string
	}{
		{"programs read files outside", []string{"/bin/cat", secret}},
		{"programs write files outside", []string{"/usr/bin/touch", escaped}},
		{"programs reach ports of this machine", []string{"/usr/bin/nc", "-z", "-w", "2", "127.0.0.1", port}},
	} {
		if err := run(ctx, profile, c.args...); err == nil {
			return errors.New("the wall has a hole: " + c.hole)
		}
		if err := ctx.Err(); err != nil { // so that a command that was killed proves nothing
			return err
		}
	}
	if _, err := os.Lstat(escaped); !errors.Is(err, fs.ErrNotExist) {
		return errors.New("the wall has a hole: programs write files outside")
	}
	return nil
}
