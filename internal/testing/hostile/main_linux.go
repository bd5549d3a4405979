// Command hostile is what the conformance suite runs in a sandbox to try its
// walls: a program that wants out. It is for tests only.
//
//	hostile MARKER TEXT ATTACK [ARG...]
//
// MARKER is a file of the host which holds TEXT. Whoever can simply read it is in
// no sandbox: then the program says so and does nothing else. Else it prints one
// line for each thing that it should not have been able to do, "escaped: WHAT",
// and in the end "done". Attacks that go on until they are killed print "begun"
// first.
//
// Nothing that it tries would do harm where it succeeds, but for what overwrites
// MARKER, and for attacks on the sandbox's own resources and processes.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// attacks are those that there are, by name; marker and text as above.
var attacks = map[string]func(marker, text string, args []string){
	"files":   attackFiles,
	"devices": attackDevices,
	"knobs":   attackSettings,
	"kernel":  attackKernel,
	"doors":   attackDoors,
	"spaces":  attackNamespaces,
	"guest":   attackGuest,
	"nothing": func(string, string, []string) {},
	"whoami":  reportUser,
	"signals": attackProcesses,
	"sockets": dialSockets,
	"flip":    flipLinks,
	"forks":   bombForks,
	"memory":  takeMemory,
	"eat":     eatMemory,
	"disk":    fillDisk,
	"output":  floodOutput,
	"handles": takeDescriptors,
	"watches": takeWatches,
	"silent":  acceptSilently,
	"dialout": dialOut,
	"stops":   stopProcesses,
	"tree":    makeDeepTree,
}

func main() {
	marker, text, attack, args := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	if canRead(marker, text) {
		reportEscape("%s can be read as it is", marker)
		return
	}
	attacks[attack](marker, text, args)
	fmt.Println("done")
}

func reportEscape(format string, args ...any) { fmt.Printf("escaped: "+format+"\n", args...) }

// reportBegun says that an attack has begun that goes on.
func reportBegun() { fmt.Println("begun") }

// canRead reports whether name is a file that holds text.
func canRead(name, text string) bool {
	got, err := os.ReadFile(name)
	return err == nil && bytes.Equal(got, []byte(text))
}

// isDenied reports whether err is how a kernel refuses a call to who may not make it,
// or says that it has no such thing.
func isDenied(err error, more ...error) bool {
	for _, no := range append(more, unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EROFS) {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// An attempt is one call that must be denied.
type attempt struct {
	what  string
	try   func() error
	other []error // how else it may be denied
}

// tryAll makes the attempts, in order, each on a thread of its own, which ends.
func tryAll(all []attempt) {
	for _, a := range all {
		ended := make(chan error)
		go func() {
			runtime.LockOSThread()
			ended <- a.try()
		}()
		if err := <-ended; !isDenied(err, a.other...) {
			reportEscape("%s: %v", a.what, err)
		}
	}
}

// reportUser tells a user who came by a set-user-ID program whether it made him another.
func reportUser(_, _ string, _ []string) {
	if unix.Geteuid() != unix.Getuid() || unix.Getegid() != unix.Getgid() {
		reportEscape("user %d:%d has become %d:%d", unix.Getuid(), unix.Getgid(), unix.Geteuid(), unix.Getegid())
	}
	if err := unix.Setuid(0); err == nil || !slices.Contains([]error{unix.EPERM, unix.ENOSYS}, err) {
		reportEscape("user %d has become root: %v", unix.Getuid(), err)
	}
}
