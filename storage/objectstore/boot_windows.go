package objectstore

import "os"

// bootID returns the name of the machine: locks of files end with their process also on
// network drives, and with the machine.
func bootID() (string, error) { return os.Hostname() }
