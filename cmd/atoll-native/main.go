//go:build linux

// Command atoll-native runs the processes of native sandboxes: supervisors and guests. Atoll has a copy of it inside and starts it; it
// does nothing for people.
package main

import (
	"fmt"
	"os"

	_ "github.com/seed46cd37a8/atoll/provider/native/engine" // takes over before main
)

func main() {
	fmt.Fprintln(os.Stderr, "atoll-native: this program is a part of atoll, which starts it for each native sandbox")
	os.Exit(2)
}
