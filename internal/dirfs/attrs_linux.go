package dirfs

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lostAttributes returns the names of the extended attributes of a file that somebody has
// set, rather than the system: capabilities, access lists and attributes of users.
func lostAttributes(file *os.File) (names []string) {
	list := make([]byte, 4<<10)
	n, err := unix.Flistxattr(int(file.Fd()), list)
	if err != nil { // there are none here, or more than fit
		return nil
	}
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if name == "security.capability" || strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "system.posix_acl_") {
			names = append(names, name)
		}
	}
	return names
}
