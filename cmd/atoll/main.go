// Command atoll creates sandboxes and works with them. It is the command line, the server and its client.
//
// With the build tag client it is the client only: it starts five times as fast, and leaves the commands that need more
// than a server to the program atoll-server, which is this command without the tag.
package main

import (
	"cmp"
	"context"
	"os"
	"os/user"

	_ "github.com/seed46cd37a8/atoll/internal/gcdelay" // a command ends before its first collection
)

func main() {
	os.Exit(runMain(os.Args[1:]))
}

// setHome sets HOME if it is not set, as in a system service of systemd: the state directory, the configuration and
// the credentials of other tools are there.
func setHome() {
	if _, err := os.UserHomeDir(); err == nil {
		return
	}
	if u, err := user.Current(); err == nil && u.HomeDir != "" {
		_ = os.Setenv("HOME", u.HomeDir)
	}
}

// runMain runs the program and returns the exit code, so that deferred calls run before main exits.
func runMain(args []string) int {
	setHome()
	if exit, done := runOther(args); done {
		return exit
	}
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Environ()}
	surviveBrokenPipes()
	trustFallbackRoots()
	root, err := a.findRoot(args)
	if err != nil {
		a.reportError(err)
		return exitCode(err, false)
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
	err = cmp.Or(adviseUnknown(root, err), a.unknownErr)
	if err != nil && !a.parsed {
		err = usageError{err}
	}
	a.endSpan(err)
	if a.readerGone(err) {
		err = signalError{sigPipe} // by now it has ended any other program
	}
	a.reportError(err)
	return exitCode(err, isRunner(cmd))
}
