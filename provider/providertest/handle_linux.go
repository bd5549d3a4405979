package providertest

import (
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"
)

// fileHandle returns the file's handle as "TYPE:HEX", or "" if its file system has none.
func fileHandle(name string) string {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, name, 0)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%s", handle.Type(), hex.EncodeToString(handle.Bytes()))
}

// hasCapabilities reports whether the file is a program with capabilities.
func hasCapabilities(name string) bool {
	_, err := unix.Lgetxattr(name, "security.capability", nil)
	return err == nil
}
