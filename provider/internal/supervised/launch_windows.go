package supervised

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// Self returns a path by which this program can be executed as supervisor, as long as its
// file stays where it was.
func Self() (string, error) { return os.Executable() }

// supervisorAttr gives a supervisor, and what it starts, a hidden console of its own, so
// that it does not end with its provider's console.
func supervisorAttr(*os.File, *SubIDs) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// isConnCut reports whether err comes from a connection whose other end has died.
func isConnCut(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED) || errors.Is(err, windows.WSAESHUTDOWN)
}

// volumeOwner returns -1: the owner of a data volume is not known.
func volumeOwner(string) (uid, gid int) { return -1, -1 }
