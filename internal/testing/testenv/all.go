package testenv

import "os"

// allVar is the variable that enables all tests.
const allVar = "CHECK_ALL"

// RunAll reports whether CHECK_ALL is 1, as in make test-all. Then tests run that take too long for every
// run.
func RunAll() bool { return os.Getenv(allVar) == "1" }
