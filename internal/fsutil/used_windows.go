package fsutil

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

var compressedFileSize = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetCompressedFileSizeW")

// Used returns the number of bytes that the file at path takes up on disk: fewer than its
// size if it is sparse or compressed.
func Used(path string) (int64, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	const failed = 0xffffffff // or the lower half of a size: then there is no error
	var high uint32
	low, _, err := compressedFileSize.Call(uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&high)))
	if uint32(low) == failed && err != windows.ERROR_SUCCESS {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return int64(high)<<32 | int64(uint32(low)), nil
}
