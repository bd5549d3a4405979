// Command hostile is a program that tries to escape from a sandbox. The conformance suite runs it in a
// sandbox to test its isolation. It is for tests only.
//
//	hostile MARKER TEXT ATTACK [ARG...]
//
// MARKER is a file of the host with the content TEXT. A program that can simply read it is not in a
// sandbox; then hostile reports that and does nothing else. Otherwise it prints a line "escaped: WHAT"
// for each thing that it could do but must not be able to do, and finally "done". Attacks that run
// until they are killed print "begun" first.
//
// A successful attack does no harm, with two exceptions: it may overwrite MARKER, and it may exhaust
// the resources and kill the processes of its own sandbox.
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

// attacks are the attacks by name. Their arguments are described above.
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
	"power":   makePower,
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

// reportBegun reports that an attack has begun that runs until it is killed.
func reportBegun() { fmt.Println("begun") }

// canRead reports whether name is a file with the content text.
func canRead(name, text string) bool {
	got, err := os.ReadFile(name)
	return err == nil && bytes.Equal(got, []byte(text))
}

// isDenied reports whether err means that the kernel denies a call to this user, or does not have the
// call.
func isDenied(err error, more ...error) bool {
	for _, no := range append(more, unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EROFS) {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// An attempt is one call that the kernel must deny.
type attempt struct {
	what  string
	try   func() error
	other []error // further errors that count as denied
}

// tryAll makes the attempts in order, each on its own thread, which ends afterwards.
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

// reportUser reports whether a set-user-ID program has changed the user.
func reportUser(_, _ string, _ []string) {
	if unix.Geteuid() != unix.Getuid() || unix.Getegid() != unix.Getgid() {
		reportEscape("user %d:%d has become %d:%d", unix.Getuid(), unix.Getgid(), unix.Geteuid(), unix.Getegid())
	}
	if err := unix.Setuid(0); err == nil || !slices.Contains([]error{unix.EPERM, unix.ENOSYS}, err) {
		reportEscape("user %d has become root: %v", unix.Getuid(), err)
	}
}
