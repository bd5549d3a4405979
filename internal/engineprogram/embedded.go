//go:build linux && embedengine

package engineprogram

import _ "embed"

// make build puts these files here: for each program, the program itself, compressed with zstd, and its SHA-256 in hex.
var (
	//go:embed atoll-engine.zst
	gvisorData []byte
	//go:embed atoll-engine.sum
	gvisorSum string
	//go:embed atoll-native.zst
	nativeData []byte
	//go:embed atoll-native.sum
	nativeSum string
)

// findPacked returns the program in its compressed form.
func (p Program) findPacked() packedProgram {
	if p == Native {
		return packedProgram{string(p), nativeData, nativeSum}
	}
	return packedProgram{string(p), gvisorData, gvisorSum}
}
