//go:build linux && !embedengine

package engineprogram

// This program was built without the engine.
var (
	packed []byte
	sum    string
)
