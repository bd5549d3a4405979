//go:build linux && embedengine

package engineprogram

import _ "embed"

// make build puts these two files here.
var (
	// packed is the program, compressed with zstd.
	//
	//go:embed atoll-engine.zst
	packed []byte
	// sum is the SHA-256 of the program, in hex.
	//
	//go:embed atoll-engine.sum
	sum string
)
