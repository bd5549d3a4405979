//go:build !linux && !darwin && !windows

package objectstore

import "errors"

// bootID fails: Atoll does not know how this system tells its starts apart.
func bootID() (string, error) { return "", errors.New("no id of this start of the machine") }
