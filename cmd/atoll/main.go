// Command atoll makes sandboxes and works with them: the command line, the
// server and its client in one.
package main

import (
	"cmp"
	"context"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run is all of main but the exit, so that what it deferred is done.
func run(args []string) int {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Environ()}
	surviveBrokenPipes()
	trustFallbackRoots()
	root := newRoot(a)
	root.SetArgs(args)
	err := cmp.Or(root.ExecuteContext(context.Background()), a.noSuch)
	a.endSpan(err)
	if a.readerGone(err) {
		err = signalError{sigPipe} // which has ended any other program by now
	}
	a.report(err)
	return exitCode(err)
}
