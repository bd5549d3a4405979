package objectstore

import (
	"os"
	"strings"
)

// bootID returns an id of this start of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
