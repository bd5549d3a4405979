// Command compress writes a zstd copy of a file: the guest's program, for atoll to embed.
//
//	go run ./packaging/compress FROM TO
package main

import (
	"fmt"
	"os"

	"github.com/seed46cd37a8/atoll/packaging/internal/programs"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: compress FROM TO")
		os.Exit(2)
	}
	if err := programs.Compress(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "compress:", err)
		os.Exit(1)
	}
}
