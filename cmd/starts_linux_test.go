package cmd_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Messages of the kernel's process connector: connector.h and cn_proc.h.
const (
	connectorProc  = 1
	listenToEvents = 1
	eventFork      = 1
	eventExec      = 2
	headerSize     = 16 + 20 // of netlink, of the connector
)

// starts has the number of programs that are started for a sandbox of each provider. The client and its server are among them. On
// gVisor the others are the engine as supervisor, gofer, sentry and its helper that unmounts /proc, on native the engine as
// supervisor, the process with which its user namespace is made, the first process and the command.
var starts = map[string]int{"gvisor": 6, "native": 6}

// checkStarts checks how many programs are started for a sandbox. Each start costs milliseconds.
func checkStarts(t *testing.T, dir string) {
	testenv.Need(t, testenv.Root)
	fd := listenToProcesses(t)
	for provider, want := range starts {
		run := exec.Command(filepath.Join(dir, "atoll"), "run", "--", "true")
		run.Env = append(os.Environ(), "ATOLL_STATE_DIR="+t.TempDir(), "ATOLL_PROVIDER="+provider)
		if out, err := run.CombinedOutput(); err != nil { // unpacks the engine
			t.Fatalf("atoll run with %s: %v: %s", provider, err, out)
		}
		readEvents(t, fd, 0)
		again := exec.Command(run.Path, run.Args[1:]...)
		again.Env = run.Env
		if out, err := again.CombinedOutput(); err != nil {
			t.Fatalf("atoll run with %s: %v: %s", provider, err, out)
		}
		if n := readEvents(t, fd, again.Process.Pid); n != want {
			t.Errorf("atoll run with %s starts %d programs, want %d", provider, n, want)
		}
	}
}

// listenToProcesses returns a socket that receives the events of all processes of this machine.
func listenToProcesses(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err == nil {
		t.Cleanup(func() { _ = unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorProc})
	}
	if err != nil {
		t.Skipf("this kernel does not report processes: %v", err)
	}
	order := binary.NativeEndian
	msg := order.AppendUint32(nil, headerSize+4)
	msg = order.AppendUint16(msg, unix.NLMSG_DONE)
	msg = order.AppendUint16(msg, 0)
	for _, word := range []uint32{0, 0, connectorProc, connectorProc, 0, 0} { // numbers, then the connector's header
		msg = order.AppendUint32(msg, word)
	}
	msg = order.AppendUint16(msg, 4)
	msg = order.AppendUint16(msg, 0)
	msg = order.AppendUint32(msg, listenToEvents)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Skipf("this kernel does not report processes: %v", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
		t.Fatal(err)
	}
	return fd
}

// readEvents reads the events that are there. It returns how many programs process root and its descendants have executed.
func readEvents(t *testing.T, fd, root int) (execs int) {
	t.Helper()
	family := map[uint32]bool{uint32(root): true}
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			return execs
		}
		if err != nil {
			t.Fatalf("events of processes: %v", err)
		}
		if n < headerSize+16+16 {
			continue // the answer to listenToEvents
		}
		event := buf[headerSize:n]
		word := func(i int) uint32 { return binary.NativeEndian.Uint32(event[16+4*i:]) }
		switch binary.NativeEndian.Uint32(event) {
		case eventFork: // parent, its group, child, its group
			if family[word(1)] {
				family[word(3)] = true
			}
		case eventExec: // thread, group
			if family[word(1)] {
				execs++
			}
		}
	}
}
