//go:build linux

package sentry

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// runProbe is the main function of a process with plan.ProbeArgv0.
func runProbe() int {
	if err := tryNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func tryNamespaces() error {
	if err := supervisor.TryMounts(); err != nil {
		return err
	}
	netns, err := newNetns()
	if err != nil {
		return err
	}
	return netns.Close()
}

// runGuest is the main function of this binary inside a sandbox.
func runGuest(args []string) int {
	err := errors.New("this is a helper process of Atoll: only Atoll may start it, in a sandbox")
	switch {
	case len(args) == 2 && args[0] == "serve":
		err = serveFiles(args[1])
	case len(args) == 4 && args[0] == "mkdir":
		err = makeDir(args[1], args[2], args[3])
	case len(args) == 1 && args[0] == "unpack":
		err = unpackUpper()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveFiles serves the file system of the sandbox on the socket that is its stdin.
func serveFiles(workdir string) error {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return err
	}
	return guest.Serve(conn, dirfs.Options{Workdir: workdir, UID: -1, GID: -1})
}

// makeDir makes a directory with its parents and, if it did not exist, gives it to its
// user.
func makeDir(dir, uid, gid string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	u, err1 := strconv.Atoi(uid)
	g, err2 := strconv.Atoi(gid)
	return errors.Join(err1, err2, os.Chown(dir, u, g))
}
