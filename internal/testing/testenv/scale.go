package testenv

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// slowVar is the variable with the factor by which this machine is slower than the one that the limits
// of the tests were chosen for: a decimal number, at least 1. `make test` measures it. The default is
// 1.
const slowVar = "CHECK_SLOWNESS"

// slowness reads slowVar once.
var slowness = sync.OnceValue(func() float64 {
	text, ok := os.LookupEnv(slowVar)
	if !ok {
		return 1
	}
	factor, err := parseSlowness(text)
	if err != nil {
		panic(err)
	}
	return factor
})

// parseSlowness parses the factor.
func parseSlowness(text string) (float64, error) {
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || !(factor >= 1) || factor > maxSlowness { // !(factor >= 1) includes NaN
		return 0, fmt.Errorf("testenv: %s=%q: must be a decimal number from 1 to %d, such as 2.5", slowVar, text, maxSlowness)
	}
	return factor, nil
}

// maxSlowness is the largest factor. With more, limits would not fit into a Duration.
const maxSlowness = 1000

// Slowness returns the factor by which Scale multiplies, at least 1. It panics if CHECK_SLOWNESS is
// invalid.
func Slowness() float64 { return slowness() }

// Scale returns a time limit for this machine: limit times the factor in CHECK_SLOWNESS, which `make
// test` measures, or limit itself without the variable. Tests pass their upper bounds through Scale,
// so that they are slow on a slow machine instead of failing. Do not scale times that are under test
// themselves, such as a TTL, nor pauses. Scale panics if CHECK_SLOWNESS is invalid.
func Scale(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * slowness())
}
