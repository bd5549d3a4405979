// Command compress writes a zstd copy of a file: the guest's program, for atoll to embed.
//
//	go run ./packaging/compress FROM TO
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: compress FROM TO")
		os.Exit(2)
	}
	if err := compressFile(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "compress:", err)
		os.Exit(1)
	}
}

func compressFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return err
	}
	packed := w.EncodeAll(data, nil)
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, packed) {
		return nil // so that go need not build atoll again
	}
	part := to + ".part" // a concurrent build finds the old file or the new one
	if err := os.WriteFile(part, packed, 0o644); err != nil {
		return err
	}
	return os.Rename(part, to)
}
