package objectstore

import "syscall"

// bootID returns an id of this start of the machine.
func bootID() (string, error) { return syscall.Sysctl("kern.bootsessionuuid") }
