package supervised

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// Self is a path by which this program can be executed as supervisor, as long as its file
// is where it was.
func Self() (string, error) { return os.Executable() }

// supervisorAttr give a supervisor a console of its own that nobody sees, with what it
// starts in it: it does not end with that of its provider.
func supervisorAttr(*os.File) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// isConnCut reports whether err is that of a connection whose other end has died.
func isConnCut(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED) || errors.Is(err, windows.WSAESHUTDOWN)
}

// volumeOwner returns that the owner of a data volume is not known.
func volumeOwner(string) (uid, gid int) { return -1, -1 }
