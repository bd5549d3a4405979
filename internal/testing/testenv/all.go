package testenv

import "os"

// allVar asks for all tests.
const allVar = "CHECK_ALL"

// All reports whether the variable CHECK_ALL is set to 1, which asks for the tests
// that take too long for every run, as make test-all does.
func All() bool { return os.Getenv(allVar) == "1" }
