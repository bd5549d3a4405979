//go:build linux

// Package runsc lets every binary that imports it serve as gVisor's own helper
// processes.
//
// gVisor starts a sandbox by executing /proc/self/exe again, as the sentry
// (argv[0] "runsc-sandbox") and as the gofer ("runsc-gofer"); the latter also
// runs "/proc/self/exe umount". Such a process must hand over to gVisor's main
// before anything else happens, and as early as possible, because everything
// initialised before it delays each sandbox. This package therefore takes over
// in init and imports nothing else of weight, so that packages which the linker
// orders later are never initialised in those processes.
package runsc

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/seed46cd37a8/atoll/internal/gcdelay"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/filters"
	_ "github.com/seed46cd37a8/atoll/provider/gvisor/internal/umount" // takes over before gVisor is initialised
)

func init() {
	if !isHelper(os.Args) {
		return
	}
	if os.Args[0] == sentryArgv0 { // a gofer has too little memory for a collection to pay
		gcdelay.Shrink()
	}
	// gVisor sets parent-death signals and namespaces on its main thread.
	runtime.LockOSThread()
	args, err := addLimits(os.Args)
	if err == nil && len(compiledFilters) > 0 {
		err = filters.Register(compiledFilters)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Args = args
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(cmd.Gofer):        "",
		new(sentrycmd.Umount): "",
	}, nil)
	os.Exit(0)
}

// sentryArgv0 is the argv[0] of a sentry.
const sentryArgv0 = "runsc-sandbox"

// isHelper reports whether args are the arguments that gVisor gives its helpers.
func isHelper(args []string) bool {
	if len(args) == 0 {
		return false
	}
	return strings.HasPrefix(args[0], "runsc-") || len(args) > 1 && args[0] == "/proc/self/exe" && args[1] == "umount"
}
