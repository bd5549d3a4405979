//go:build linux

// Package fakewsl is the Windows Subsystem for Linux for tests on Linux, as root: a
// program with the command line, output and codes of wsl.exe, whose distributions are
// real. Each has a root file system of its own, and runs in namespaces for mounts,
// processes, host names and IPC, in which terminating it ends all; network, devices and
// kernel are those of the machine, as all distributions have them in common.
//
//	func TestMain(m *testing.M) {
//		if filepath.Base(os.Args[0]) == fakewsl.Name {
//			os.Exit(fakewsl.Main(os.Args))
//		}
//		...
//
// What there is of distributions is in the directory that the program is in.
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

// Name is that of the program.
const Name = "wsl.exe"

// Install puts the program, which is this one, into a directory, and returns its path.
// Who is done with it calls Remove.
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
		for len(w.all) > 0 {
			if err := w.removeDistribution(0); err != nil {
				return err
			}
		}
		return nil
	})
}

// A Distribution is one that the program knows.
type Distribution struct {
	Name string
	Dir  string // with the disk
	PID  int    // of its first process, when it runs
}

// Root is where the root file system is.
func (d Distribution) Root() string { return filepath.Join(d.Dir, diskName) }

// List returns the distributions of the program in a directory.
func List(dir string) (all []Distribution, err error) {
	w := &wsl{home: dir}
	err = w.updateState(func() error {
		all = w.all
		for i := range all {
			if !w.isRunning(i) {
				all[i].PID = 0
			}
		}
		return nil
	})
	return all, err
}

// Main is the program, with its whole command line; it returns its code.
func Main(args []string) int {
	w := &wsl{home: filepath.Dir(args[0])}
	if len(args) == 3 && args[1] == initVerb {
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
	return 255 // -1, of which Unix has one byte
}

const (
	registryName = "registry.json"
	diskName     = "ext4.vhdx" // which is a directory here
)

// A wslError is the code of an error of WSL's own.
type wslError string

func (e wslError) Error() string { return string(e) }

// An exitCode is that of a program in a distribution, or of one that was said all of.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

type wsl struct {
	home string
	all  []Distribution // what change has read
}

// printLine prints as wsl.exe does.
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

// updateState calls do with what there is of distributions, and writes down what it has made of
// it, alone.
func (w *wsl) updateState(do func() error) error {
	path := filepath.Join(w.home, registryName)
	lock, err := fsutil.WaitLock(path + ".lock")
	if err != nil {
		return err
	}
	defer lock.Release()
	w.all = nil
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &w.all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = do()
	return errors.Join(err, fsutil.WriteJSON(path, w.all)) // what was done of it is
}

// withDistribution calls do with a distribution, by its name.
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
	return slices.IndexFunc(w.all, func(d Distribution) bool { return strings.EqualFold(d.Name, name) })
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
	if len(w.all) == 0 {
		w.printLine("Windows Subsystem for Linux has no installed distributions.\n")
		return exitCode(255)
	}
	for _, d := range w.all {
		w.printLine("%s\n", d.Name)
	}
	return nil
}

// addDistribution notes a distribution that is not there yet.
func (w *wsl) addDistribution(d Distribution) error {
	return w.updateState(func() error {
		if w.findIndex(d.Name) >= 0 {
			return wslError("ERROR_ALREADY_EXISTS")
		}
		w.all = append(w.all, d)
		return nil
	})
}

// importArchive is --import. The distribution is known from the beginning, and forgotten when the
// archive turns out to be none; but not when this process is killed.
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

// importInPlace is --import-in-place.
func (w *wsl) importInPlace(name, path string) error {
	if _, err := os.Stat(path); err != nil || filepath.Base(path) != diskName {
		return wslError("ERROR_FILE_NOT_FOUND")
	}
	return w.addDistribution(Distribution{Name: name, Dir: filepath.Dir(path)})
}

// isRunning reports whether the first process of a distribution is there.
func (w *wsl) isRunning(i int) bool {
	d := w.all[i]
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.PID))
	return err == nil && d.PID > 0 && strings.HasSuffix(string(text), "\x00"+initVerb+"\x00"+d.Root()+"\x00")
}

// endTime is the time in which the kernel must end all processes of a distribution.
var endTime = testenv.Scale(30 * time.Second)

func (w *wsl) endProcesses(i int) error {
	first, err := unix.PidfdOpen(w.all[i].PID, 0)
	if err == nil && w.isRunning(i) {
		defer unix.Close(first)
		_ = unix.PidfdSendSignal(first, unix.SIGKILL, nil, 0) // it may have ended
		ended := []unix.PollFd{{Fd: int32(first), Events: unix.POLLIN}}
		if n, _ := unix.Poll(ended, int(endTime.Milliseconds())); n == 0 { // the last of all that run in it
			return wslError("E_UNEXPECTED")
		}
	}
	w.all[i].PID = 0
	return nil
}

// removals is how often the removal of a root file system is tried again.
var removals = int(500 * testenv.Slowness())

func (w *wsl) removeDistribution(i int) error {
	if err := w.endProcesses(i); err != nil {
		return err
	}
	err := os.RemoveAll(w.all[i].Root())
	for try := 0; err != nil && try < removals; try++ { // what was about to begin in it may not have ended
		time.Sleep(20 * time.Millisecond)
		err = os.RemoveAll(w.all[i].Root())
	}
	if err != nil {
		return err
	}
	_ = os.Remove(w.all[i].Dir) // what else is in it stays
	w.all = slices.Delete(w.all, i, i+1)
	return nil
}
