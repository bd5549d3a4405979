//go:build linux

// Command atoll-engine runs the processes of gVisor's sandboxes: supervisors, sentries, gofers and guests. Atoll has a
// copy of it inside and starts it; it does nothing for people.
package main

import (
	"fmt"
	"os"

	_ "github.com/seed46cd37a8/atoll/provider/gvisor/engine" // takes over before main
)

func main() {
	fmt.Fprintln(os.Stderr, "atoll-engine: this program is a part of atoll, which starts it for each gVisor sandbox")
	os.Exit(2)
}
