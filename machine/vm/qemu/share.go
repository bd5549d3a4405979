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

// A shareDaemon is a virtiofsd: the one that was part of QEMU, or its successor.
type shareDaemon struct {
	path   string
	modern bool // the successor, which has other options, and can share read-only
}

// shareDaemons lists the places of virtiofsd: packages install it beside QEMU and not in PATH.
var shareDaemons = []string{"virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd", "/usr/libexec/qemu/virtiofsd"}

// findShareDaemon finds virtiofsd, once in the life of the program.
var findShareDaemon = sync.OnceValues(func() (shareDaemon, error) {
	for _, name := range shareDaemons {
		if path, err := exec.LookPath(name); err == nil {
			help, err := exec.Command(path, "--help").CombinedOutput()
			return shareDaemon{path, bytes.Contains(help, []byte("--shared-dir"))}, err
		}
	}
	return shareDaemon{}, vm.MissingProgram("share", "", "virtiofsd is not installed: on Debian it is in qemu-system-common, or in virtiofsd")
})

// socketFD is the descriptor of the daemon's socket.
const socketFD = 3

// buildArgs returns the daemon's arguments for a share. The guest caches nothing: other programs
// may change the directory, and the guest sees changes at once.
func (d shareDaemon) buildArgs(s vm.Share) []string {
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

// startShareDaemon starts the daemon of a share with a socket that we created, so that QEMU can
// connect at once: the daemon would record a socket of its own in a place that nobody cleans up.
func (m *machine) startShareDaemon(i int, s vm.Share) (*child.Process, error) {
	d, err := findShareDaemon()
	if err == nil && s.ReadOnly && !d.modern {
		err = onReadOnly(s.Dir)
	}
	if err != nil {
		return nil, err
	}
	socket, err := listenUnix(m.shareSocket(i))
	if err != nil {
		return nil, err
	}
	defer socket.Close() // the daemon has its own copy
	return startProgram(d.path, d.buildArgs(s), nil, []*os.File{socket})
}

// listenUnix creates a socket, and removes an old one at the path first.
func listenUnix(path string) (*os.File, error) {
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

// shareSocket returns the path of the socket of a share's daemon.
func (m *machine) shareSocket(i int) string {
	return filepath.Join(m.hardware.Dir, "share"+strconv.Itoa(i)+".sock")
}

// onReadOnly returns an error unless dir is on a read-only mount. The guest decides how it mounts a
// share, and QEMU's own virtiofsd lets it write.
func onReadOnly(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return atoll.Errorf("share", dir, atoll.ErrUnsupported, "this virtiofsd cannot share read-only: mount the directory read-only, or install a virtiofsd with --readonly")
	}
	return nil
}
