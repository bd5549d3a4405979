//go:build linux && !embedfilters

package runsc

// compiledFilters are none: this program was built without them, and each sandbox compiles its own.
var compiledFilters []byte
