//go:build linux

package qemu

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/internal/child"
)

// A shareDaemon is a virtiofsd: the one that was QEMU's own, or the one that has taken
// its place.
type shareDaemon struct {
	path   string
	modern bool // which has other options, and can share read-only
}

// Where virtiofsd is, which packages put beside QEMU and not into PATH.
var shareDaemons = []string{"virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd", "/usr/libexec/qemu/virtiofsd"}

// findShareDaemon looks for it once in a program.
var findShareDaemon = sync.OnceValues(func() (shareDaemon, error) {
	for _, name := range shareDaemons {
		if path, err := exec.LookPath(name); err == nil {
			help, err := exec.Command(path, "--help").CombinedOutput()
			return shareDaemon{path, bytes.Contains(help, []byte("--shared-dir"))}, err
		}
	}
	return shareDaemon{}, atoll.Errorf("share", "", atoll.ErrUnavailable, "virtiofsd is not installed: on Debian it is in qemu-system-common, or in virtiofsd")
})

// socketFD is the descriptor of its socket.
const socketFD = 3

// args are those for a share. Nothing is cached in the guest: others may change the
// directory, and all see that at once.
func (d shareDaemon) args(s vm.Share) []string {
	args := []string{"--fd=" + strconv.Itoa(socketFD)}
	if !d.modern {
		escaped := strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(s.Dir)
		return append(args, "-f", "-o", "source="+escaped, "-o", "sandbox=namespace", "-o", "cache=none", "-o", "log_level=err")
	}
	args = append(args, "--shared-dir="+s.Dir, "--sandbox=namespace", "--cache=never")
	if s.ReadOnly {
		args = append(args, "--readonly")
	}
	return args
}

// share starts the daemon of a share. It has a socket of ours, to which QEMU can connect
// at once: one that it makes itself it would make note of where nobody tidies up.
func (m *machine) share(i int, s vm.Share) (*child.Process, error) {
	d, err := findShareDaemon()
	if err == nil && s.ReadOnly && !d.modern {
		err = onReadOnly(s.Dir)
	}
	if err != nil {
		return nil, err
	}
	socket, err := listen(m.shareSocket(i))
	if err != nil {
		return nil, err
	}
	defer socket.Close() // the daemon has its own
	return run(d.path, d.args(s), nil, []*os.File{socket})
}

// listen makes a socket in place of what may be left of one.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// shareSocket is where the daemon of a share listens.
func (m *machine) shareSocket(i int) string {
	return filepath.Join(m.h.Dir, "share"+strconv.Itoa(i)+".sock")
}

// onReadOnly reports whether dir is on a mount that cannot be written to: the guest
// decides how it mounts a share, and QEMU's own virtiofsd lets it write.
func onReadOnly(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return atoll.Errorf("share", dir, atoll.ErrUnsupported, "this virtiofsd cannot share it read-only: mount it so before, or install the one that has --readonly")
	}
	return nil
}
