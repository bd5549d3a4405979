//go:build linux

// Package fakewsl is a fake Windows Subsystem for Linux for tests on Linux, as root: a program with
// the command line, output and exit codes of wsl.exe, whose distributions are real. Each has its own
// root file system, and its own namespaces for mounts, processes, host names and IPC. Terminating it
// ends all its processes. Network, devices and kernel are those of the machine, as all distributions
// share them.
//
//	func TestMain(m *testing.M) {
//		if filepath.Base(os.Args[0]) == fakewsl.Name {
//			os.Exit(fakewsl.Main(os.Args))
//		}
//		...
//
// The directory of the program holds its distributions.
package fakewsl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Name is the file name of the program.
const Name = "wsl.exe"

// Install links this program into a directory as wsl.exe and returns its path. The caller must call
// Remove afterwards.
func Install(dir string) (program string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, Name)
	return program, os.Symlink(self, program)
}

// Remove unregisters all distributions of the program in a directory.
func Remove(dir string) error {
	w := &wsl{home: dir}
	return w.updateState(func() error {
		for len(w.distributions) > 0 {
			if err := w.removeDistribution(0); err != nil {
				return err
			}
		}
		return nil
	})
}

// A Distribution is a distribution registered with the program.
type Distribution struct {
	Name string
	Dir  string // contains the disk
	PID  int    // of its first process; 0 if it does not run
}

// Root returns the path of the root file system.
func (d Distribution) Root() string { return filepath.Join(d.Dir, diskName) }

// List returns the distributions of the program in a directory.
func List(dir string) (all []Distribution, err error) {
	w := &wsl{home: dir}
	err = w.updateState(func() error {
		all = w.distributions
		for i := range all {
			if !w.isRunning(i) {
				all[i].PID = 0
			}
		}
		return nil
	})
	return all, err
}

// Main runs the program with its whole command line and returns its exit code.
func Main(args []string) int {
	w := &wsl{home: filepath.Dir(args[0])}
	if len(args) == 3 && args[1] == initFlag {
		return runInit(args[2])
	}
	err := w.runCommand(args[1:])
	var code exitCode
	var failed wslError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &failed):
		w.printLine("Das hat nicht geklappt – schade.\nFehlercode: Wsl/Service/%s\n", string(failed))
	default:
		w.printLine("%v\n", err)
	}
	return 255 // -1 as a byte
}

const (
	registryName = "registry.json"
	diskName     = "ext4.vhdx" // a directory in this fake
)

// A wslError is an error code of WSL itself.
type wslError string

func (e wslError) Error() string { return string(e) }

// An exitCode is the exit code of a program in a distribution, or of a command that has printed its
// error.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

type wsl struct {
	home          string
	distributions []Distribution // read by updateState
}

// printLine prints text like wsl.exe: with CRLF, in UTF-16 unless WSL_UTF8=1.
func (w *wsl) printLine(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\r\n")
	if os.Getenv("WSL_UTF8") == "1" {
		fmt.Print(text)
		return
	}
	for _, unit := range utf16.Encode([]rune(text)) {
		os.Stdout.Write([]byte{byte(unit), byte(unit >> 8)})
	}
}

// updateState reads the distributions, calls do and writes them, while it holds a lock.
func (w *wsl) updateState(do func() error) error {
	path := filepath.Join(w.home, registryName)
	lock, err := fsutil.WaitLock(path + ".lock")
	if err != nil {
		return err
	}
	defer lock.Release()
	w.distributions = nil
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &w.distributions)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = do()
	return errors.Join(err, fsutil.WriteJSON(path, w.distributions)) // do may have changed something before it failed
}

// withDistribution calls do with the index of a distribution, in updateState.
func (w *wsl) withDistribution(name string, do func(i int) error) error {
	return w.updateState(func() error {
		i := w.findIndex(name)
		if i < 0 {
			return wslError("WSL_E_DISTRO_NOT_FOUND")
		}
		return do(i)
	})
}

func (w *wsl) findIndex(name string) int {
	return slices.IndexFunc(w.distributions, func(d Distribution) bool { return strings.EqualFold(d.Name, name) })
}

func (w *wsl) runCommand(args []string) error {
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	switch {
	case verb == "--version":
		w.printLine("WSL version: 2.4.13.0\nKernel version: 5.15.167.4-1\n")
	case verb == "--status":
		w.printLine("Default Version: 2\n")
	case verb == "--list":
		return w.updateState(w.printList)
	case verb == "--import" && len(args) == 6 && args[3] == "-" && args[4] == "--version" && args[5] == "2":
		return w.importArchive(args[1], args[2])
	case verb == "--import-in-place" && len(args) == 3:
		return w.importInPlace(args[1], args[2])
	case verb == "--terminate" && len(args) == 2:
		return w.withDistribution(args[1], w.endProcesses)
	case verb == "--unregister" && len(args) == 2:
		return w.withDistribution(args[1], w.removeDistribution)
	case verb == "--distribution" && len(args) > 7 && slices.Equal(args[2:7], []string{"--user", "root", "--cd", "/", "--exec"}) && os.Getenv("WSLENV") == "":
		return w.runProgram(args[1], args[7:])
	default:
		return wslError("E_INVALIDARG")
	}
	return nil
}

func (w *wsl) printList() error {
	if len(w.distributions) == 0 {
		w.printLine("Windows Subsystem for Linux has no installed distributions.\n")
		return exitCode(255)
	}
	for _, d := range w.distributions {
		w.printLine("%s\n", d.Name)
	}
	return nil
}

// addDistribution adds a distribution with a new name.
func (w *wsl) addDistribution(d Distribution) error {
	return w.updateState(func() error {
		if w.findIndex(d.Name) >= 0 {
			return wslError("ERROR_ALREADY_EXISTS")
		}
		w.distributions = append(w.distributions, d)
		return nil
	})
}

// importArchive implements --import. It registers the distribution first, and removes it if the
// archive cannot be unpacked, but not if this process is killed.
func (w *wsl) importArchive(name, dir string) error {
	d := Distribution{Name: name, Dir: dir}
	if _, err := os.Stat(d.Root()); err == nil {
		return wslError("ERROR_FILE_EXISTS")
	}
	if err := w.addDistribution(d); err != nil {
		return err
	}
	err := os.MkdirAll(d.Root(), 0o755)
	if err == nil {
		unpack := exec.Command("/bin/tar", "-xpf", "-", "-C", d.Root())
		unpack.Stdin, unpack.SysProcAttr = os.Stdin, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err = unpack.Run()
	}
	if err != nil {
		return errors.Join(wslError("WSL_E_IMPORT_FAILED"), w.withDistribution(name, w.removeDistribution))
	}
	w.printLine("The operation completed successfully.\n")
	return nil
}

// importInPlace implements --import-in-place.
func (w *wsl) importInPlace(name, path string) error {
	if _, err := os.Stat(path); err != nil || filepath.Base(path) != diskName {
		return wslError("ERROR_FILE_NOT_FOUND")
	}
	return w.addDistribution(Distribution{Name: name, Dir: filepath.Dir(path)})
}

// isRunning reports whether the first process of a distribution runs.
func (w *wsl) isRunning(i int) bool {
	d := w.distributions[i]
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.PID))
	return err == nil && d.PID > 0 && strings.HasSuffix(string(text), "\x00"+initFlag+"\x00"+d.Root()+"\x00")
}

// endTime limits the time in which the kernel ends all processes of a distribution.
var endTime = testenv.Scale(30 * time.Second)

func (w *wsl) endProcesses(i int) error {
	first, err := unix.PidfdOpen(w.distributions[i].PID, 0)
	if err == nil && w.isRunning(i) {
		defer unix.Close(first)
		_ = unix.PidfdSendSignal(first, unix.SIGKILL, nil, 0) // fails if it has ended
		ended := []unix.PollFd{{Fd: int32(first), Events: unix.POLLIN}}
		if n, _ := unix.Poll(ended, int(endTime.Milliseconds())); n == 0 { // the first process ends after all others
			return wslError("E_UNEXPECTED")
		}
	}
	w.distributions[i].PID = 0
	return nil
}

// removals is the number of attempts to remove a root file system.
var removals = int(500 * testenv.Slowness())

func (w *wsl) removeDistribution(i int) error {
	if err := w.endProcesses(i); err != nil {
		return err
	}
	err := os.RemoveAll(w.distributions[i].Root())
	for try := 0; err != nil && try < removals; try++ { // a process that was starting may still write to it
		time.Sleep(20 * time.Millisecond)
		err = os.RemoveAll(w.distributions[i].Root())
	}
	if err != nil {
		return err
	}
	_ = os.Remove(w.distributions[i].Dir) // fails if other files are in it
	w.distributions = slices.Delete(w.distributions, i, i+1)
	return nil
}
