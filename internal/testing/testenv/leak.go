package testenv

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// VerifyTestMain runs the tests of a package and exits. It fails if goroutines are left that do not end
// within AwaitGoroutines's time.
func VerifyTestMain(m goleak.TestingM) {
	code := m.Run()
	if code == 0 {
		if err := AwaitGoroutines(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// AwaitGoroutines waits up to 10 s, times the slowness of the machine, until all goroutines have ended
// except those that the options ignore. Its error has the stacks of the rest.
func AwaitGoroutines(opts ...goleak.Option) error {
	end := time.Now().Add(Scale(10 * time.Second))
	for {
		if err := goleak.Find(opts...); err == nil || time.Now().After(end) { // Find itself pauses between its attempts
			return err
		}
	}
}
