package vm

import (
	"fmt"
	"os/exec"

	"github.com/seed46cd37a8/atoll"
)

// MissingProgram returns the error of op on name for a program that is not installed. The formatted
// text says so, and how to install it. Kinds: ErrUnavailable. It also matches exec.ErrNotFound, so that
// nobody tries again.
func MissingProgram(op, name, format string, args ...any) error {
	return atoll.E(op, name, atoll.ErrUnavailable, missingProgramError(fmt.Sprintf(format, args...)))
}

type missingProgramError string

func (m missingProgramError) Error() string { return string(m) }

// Is implements the interface of errors.Is.
func (missingProgramError) Is(target error) bool { return target == exec.ErrNotFound }
