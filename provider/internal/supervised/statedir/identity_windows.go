package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/windows"
)

// Identify returns the identity of a running process. Its start time is wall-clock time,
// which no process before a reboot has.
func Identify(pid int) (Identity, error) {
	handle, err := openProcess(pid, windows.PROCESS_QUERY_LIMITED_INFORMATION)
	if err != nil {
		return Identity{}, fmt.Errorf("process %d: %w", pid, err)
	}
	defer windows.CloseHandle(handle)
	return identifyHandle(pid, handle)
}

// openProcess opens a process; fs.ErrNotExist if there is none with that number.
func openProcess(pid int, access uint32) (windows.Handle, error) {
	handle, err := windows.OpenProcess(access, false, uint32(pid))
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		err = fs.ErrNotExist
	}
	return handle, err
}

// identifyHandle returns the identity of an open process. It fails if the process has
// ended, even while handles to it are open.
func identifyHandle(pid int, handle windows.Handle) (Identity, error) {
	var start, exit, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(handle, &start, &exit, &kernel, &user); err != nil {
		return Identity{}, fmt.Errorf("process %d: %w", pid, err)
	}
	var code uint32
	if err := windows.GetExitCodeProcess(handle, &code); err != nil || code != stillActive {
		return Identity{}, fmt.Errorf("process %d: %w", pid, errors.Join(err, fs.ErrNotExist))
	}
	return Identity{PID: pid, Start: strconv.FormatInt(start.Nanoseconds(), 10)}, nil
}

// stillActive is the exit code of a process that still runs (STILL_ACTIVE).
const stillActive = 259

// killProcess opens the process, so that no other one can get its number meanwhile, and
// kills it.
func (i Identity) killProcess(ctx context.Context) error {
	handle, err := openProcess(i.PID, windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.PROCESS_TERMINATE|windows.SYNCHRONIZE)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", i.PID, err)
	}
	defer windows.CloseHandle(handle)
	if now, err := identifyHandle(i.PID, handle); err != nil || now != i {
		return nil
	}
	if err := windows.TerminateProcess(handle, 1); err != nil {
		return fmt.Errorf("kill %d: %w", i.PID, err)
	}
	for ctx.Err() == nil {
		if event, _ := windows.WaitForSingleObject(handle, 100); event == windows.WAIT_OBJECT_0 {
			return nil
		}
	}
	return ctx.Err()
}
