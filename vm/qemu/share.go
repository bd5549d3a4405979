//go:build linux

package qemu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/vm"
)

// Where virtiofsd is, which packages put beside QEMU and not into PATH.
var shareDaemons = []string{"virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd", "/usr/libexec/qemu/virtiofsd"}

func shareDaemon() (string, error) {
	for _, name := range shareDaemons {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", atoll.Errorf("share", "", atoll.ErrUnavailable, "virtiofsd is not installed: on Debian it is in qemu-system-common, or in virtiofsd")
}

// share starts the daemon of a share, and returns when it listens.
func (m *machine) share(ctx context.Context, i int, s vm.Share) (*process, error) {
	program, err := shareDaemon()
	if err != nil {
		return nil, err
	}
	if strings.Contains(s.Dir, ",") {
		return nil, atoll.Errorf("share", s.Tag, atoll.ErrInvalid, "directory %q: a name with a comma cannot be shared", s.Dir)
	}
	socket := m.shareSocket(i)
	args := []string{"--socket-path=" + socket}
	if first, err := exec.CommandContext(ctx, program, "--help").CombinedOutput(); err == nil && bytes.Contains(first, []byte("--shared-dir")) {
		args = append(args, "--shared-dir="+s.Dir, "--sandbox=namespace")
		if s.ReadOnly {
			args = append(args, "--readonly")
		}
	} else {
		args = append(args, "-f", "-o", "source="+s.Dir, "-o", "sandbox=namespace", "-o", "log_level=err")
		if s.ReadOnly {
			if err := onReadOnly(s.Dir); err != nil {
				return nil, err
			}
		}
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	p, err := run(program, args, nil, nil)
	if err != nil {
		return nil, err
	}
	deadline := time.After(shareTime)
	for {
		if _, err := os.Lstat(socket); err == nil {
			return p, nil
		}
		select {
		case <-p.ended:
			return nil, atoll.Errorf("share", s.Tag, atoll.ErrUnavailable, "virtiofsd does not start: %s", cmp.Or(p.said(), "it said nothing"))
		case <-deadline:
			p.kill()
			return nil, atoll.Errorf("share", s.Tag, atoll.ErrUnavailable, "virtiofsd does not start within %s: %s", shareTime, p.said())
		case <-ctx.Done():
			p.kill()
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// shareTime is how long a daemon may take to listen.
const shareTime = 10 * time.Second

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
