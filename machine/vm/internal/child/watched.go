//go:build unix

package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
)

// watchScript is the shell script for systems whose kernel does not end children with their
// parents: it runs the program, and kills it when a descriptor ends whose other end we hold. While
// the script waits for the program, no other process can get its PID.
const watchScript = `"$@" %[1]d<&- &
program=$!
{ read -r _ <&%[1]d; kill -9 "$program"; } >/dev/null 2>&1 &
watcher=$!
exec %[1]d<&-
wait "$program"
code=$?
kill -9 "$watcher" 2>/dev/null
exit "$code"
`

// watchCommand makes cmd run below a shell that ends it with us.
func watchCommand(cmd *exec.Cmd) (kill func(*os.Process), release func(), err error) {
	fd := 3 + len(cmd.ExtraFiles)
	if fd > 9 {
		return nil, nil, errors.New("too many extra files: a shell passes on six")
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	name := cmd.Path
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(watchScript, fd), "sh", name}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), theirs)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	kill = func(p *os.Process) {
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL) // the whole group; it may just have ended
	}
	return kill, func() { theirs.Close(); ours.Close() }, nil
}
