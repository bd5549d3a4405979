//go:build linux && embedfilters

package runsc

import _ "embed"

// compiledFilters are seccomp programs for filters.Register. make engine puts them here.
//
//go:embed filters.json
var compiledFilters []byte
