package supervised

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// Self is a path by which this program can be executed as keeper, as long as its file
// is where it was.
func Self() (string, error) { return os.Executable() }

// keeperAttr give a keeper a console of its own that nobody sees, with what it
// starts in it: it does not end with that of its provider.
func keeperAttr(*os.File) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// cutOff reports whether err is that of a connection whose other end has died.
func cutOff(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED) || errors.Is(err, windows.WSAESHUTDOWN)
}

// ownerOf returns that the owner of a data volume is not known.
func ownerOf(string) (uid, gid int) { return -1, -1 }
