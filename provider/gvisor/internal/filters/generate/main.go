//go:build linux

// Command generate prints the compiled seccomp programs of gVisor for the architecture that it runs on, as JSON for
// filters.Register.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/filters"
)

func main() {
	programs, err := filters.Compile()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(programs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
