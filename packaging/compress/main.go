// Command compress writes a zstd copy of a file, for atoll to embed: of the guest's program, or of an engine's with
// its SHA-256 beside it.
//
//	go run ./packaging/compress [-sum] FROM TO.zst
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/seed46cd37a8/atoll/packaging/internal/programs"
)

func main() {
	sum := flag.Bool("sum", false, "also write TO.sum, with the SHA-256 of FROM in hex")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: compress [-sum] FROM TO.zst")
		os.Exit(2)
	}
	err := programs.Compress(flag.Arg(0), flag.Arg(1))
	if err == nil && *sum {
		err = programs.WriteSum(flag.Arg(0), strings.TrimSuffix(flag.Arg(1), ".zst")+".sum")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compress:", err)
		os.Exit(1)
	}
}
