//go:build linux

package keeper

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/provider/native/internal/pid1"
	"github.com/seed46cd37a8/atoll/provider/native/internal/vfork"
)

// ids are the users and groups of a sandbox, in a user namespace of its own.
type ids struct {
	namespace *os.File
	root      int               // the user on the host that is root inside, as this process sees it
	mapped    bool              // the ids are none of the host: mounts of the host's files need the mapping of the namespace
	count     int               // of ids that exist inside
	claim     *net.UnixListener // holds a range of ids for this sandbox; nil if the ids are not its own
}

// A range of ids that belongs to nobody is above those that Linux distributions and systemd use for users and containers.
const (
	rangeSize  = 1 << 16
	firstRange = 0x7000_0000 / rangeSize
	ranges     = 0x0fff_0000 / rangeSize
)

// newIDs creates a user namespace for a sandbox. If this process has all ids of the machine, the sandbox gets a range of its own;
// else it gets the ids that this process has.
func newIDs() (_ *ids, err error) {
	users, err := readMap("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	groups, err := readMap("/proc/self/gid_map")
	if err != nil {
		return nil, err
	}
	i := &ids{count: countIDs(users)}
	defer func() {
		if err != nil {
			i.releaseIDs()
		}
	}()
	if hasAll(users) && hasAll(groups) {
		n, claim, err := claimRange()
		if err != nil {
			return nil, err
		}
		i.root, i.mapped, i.count, i.claim = n, true, rangeSize, claim
		users = []idRange{{0, n, rangeSize}}
		groups = users
	}
	i.namespace, err = newUserNamespace(users, groups)
	return i, err
}

func (i *ids) releaseIDs() {
	if i.namespace != nil {
		_ = i.namespace.Close()
	}
	if i.claim != nil {
		_ = i.claim.Close()
	}
}

// claimRange returns the first id of a range that no other sandbox of the machine uses. The claim is a name of a socket, so that it
// ends with this process.
func claimRange() (int, *net.UnixListener, error) {
	start := rand.IntN(ranges)
	for i := range ranges {
		n := firstRange + (start+i)%ranges
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@atoll-ids-%d", n), Net: "unix"})
		if err == nil {
			return n * rangeSize, l, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return 0, nil, fmt.Errorf("claim ids: %w", err)
		}
	}
	return 0, nil, errors.New("claim ids: all ranges are in use")
}

// An idRange is a line of a map of ids: count ids inside, from inside on, are those outside, from outside on.
type idRange struct{ inside, outside, count int }

// readMap reads the map of this process's user namespace. The ids inside are those that this process may give to others.
func readMap(name string) (ranges []idRange, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		var r idRange
		if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.count); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.outside = r.inside
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// hasAll reports whether a map is that of the machine.
func hasAll(ranges []idRange) bool { return len(ranges) == 1 && ranges[0].count == 1<<32-1 }

func countIDs(ranges []idRange) (n int) {
	for _, r := range ranges {
		n += r.count
	}
	return n
}

func formatMap(ranges []idRange) []byte {
	var text strings.Builder
	for _, r := range ranges {
		fmt.Fprintln(&text, r.inside, r.outside, r.count)
	}
	return []byte(text.String())
}

// newUserNamespace creates a user namespace below that of this process. It lives as long as the file, or a process in it, does.
func newUserNamespace(users, groups []idRange) (_ *os.File, err error) {
	program, err := initProgram()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := vfork.New()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	// The program rests until this process closes the socket, or dies.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(fds[0])
	theirs, err := raiseFile(os.NewFile(uintptr(fds[1]), "socket"))
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	s.Clone("user namespace", unix.CLONE_NEWUSER)
	s.Do("descriptors", unix.SYS_CLOSE_RANGE, 0, lowestFD-1, 0)
	s.Do("descriptors", unix.SYS_DUP3, uint64(theirs.Fd()), pid1.SocketFD, 0)
	s.Do("program", unix.SYS_EXECVEAT, uint64(program.Fd()), s.AddText(""), s.AddTexts([]string{"atoll"}), s.AddTexts(nil), unix.AT_EMPTY_PATH)
	pid, err := s.Run(nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL) // it is our child: the PID is not reused before the wait
		waitProcess(pid)
	}()
	proc := fmt.Sprintf("/proc/%d/", pid)
	for _, m := range []struct {
		name string
		data []byte
	}{{"uid_map", formatMap(users)}, {"gid_map", formatMap(groups)}} {
		if err := os.WriteFile(proc+m.name, m.data, 0); err != nil {
			return nil, fmt.Errorf("ids of the sandbox: %w", err)
		}
	}
	return os.Open(proc + "ns/user")
}

// waitProcess waits for a child, and returns its status.
func waitProcess(pid int) (status unix.WaitStatus) {
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			return status
		}
	}
}
