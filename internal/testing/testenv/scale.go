package testenv

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// slowVar names the variable with the factor by which this machine is slower than the one that the limits of
// the tests were written for: a decimal number, at least 1. `make test` measures it. Unset, it is 1.
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

// parseSlowness returns the factor in text.
func parseSlowness(text string) (float64, error) {
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || !(factor >= 1) || factor > maxSlowness { // NaN is not at least 1
		return 0, fmt.Errorf("testenv: %s=%q: it must be a decimal number from 1 to %d, like 2.5", slowVar, text, maxSlowness)
	}
	return factor, nil
}

// maxSlowness is the largest factor: with more, limits would no longer fit into a Duration.
const maxSlowness = 1000

// Slowness returns the factor by which Scale multiplies, at least 1. Slowness panics when
// CHECK_SLOWNESS holds no such factor.
func Slowness() float64 { return slowness() }

// Scale returns a limit of time for this machine: limit times the factor in
// CHECK_SLOWNESS, which `make test` measures, and limit itself where that is unset.
// A test passes its upper bounds through Scale, so that on a slow machine it is slow
// and does not fail. Scale is not for times that are themselves under test, such as a
// TTL, nor for a pause that only costs time. Scale panics when CHECK_SLOWNESS holds no
// factor.
func Scale(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * slowness())
}
