package guest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/socket"
)

// The first byte of a connection says who speaks: a program that lends its
// descriptors, which come with it, or a host itself.
const (
	lends  = 0
	speaks = 1
)

// Greet begins the conversation of a host that has itself connected to a Machine.
func Greet(conn net.Conn) error {
	_, err := conn.Write([]byte{speaks})
	return err
}

// Lend gives the Machine at the other end of conn the descriptors of this
// program's stdin and stdout, to serve whoever is at their other ends, and returns
// when it is done with them. That spares every byte the way through this program.
func Lend(conn *net.UnixConn, stdin, stdout *os.File) error {
	rights := unix.UnixRights(int(stdin.Fd()), int(stdout.Fd()))
	if _, _, err := conn.WriteMsgUnix([]byte{lends}, rights, nil); err != nil {
		return err
	}
	if err := errors.Join(stdin.Close(), stdout.Close()); err != nil { // the other ends see it when the Machine closes them
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	return err
}

// A host is whoever is at the other ends of what a program has lent.
type host struct {
	in, out *os.File
	lender  *net.UnixConn
}

// lendTime is how long a lender may take.
const lendTime = 10 * time.Second

// pipeSize is that of the pipes to a host, if they are: the more is in them, the
// less often each side has to wait for the other.
const pipeSize = 1 << 20

// meet is the host that speaks on conn, or through what is lent on it by a program
// that the container's engine has executed. All others are refused, because they
// would get the rights of this process.
func meet(conn *net.UnixConn) (io.ReadWriteCloser, error) {
	if !fromOutside(conn) {
		return nil, errors.New("a stranger")
	}
	if err := conn.SetDeadline(time.Now().Add(lendTime)); err != nil {
		return nil, err
	}
	first, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := conn.ReadMsgUnix(first, oob)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if first[0] == speaks {
		return conn, nil
	}
	return borrow(conn, oob[:n])
}

// fromOutside reports whether the process at the other end is not one of the
// container's own: either it is in none of its PID namespaces, which only who
// administers its machine can bring about, or the engine has executed it, and it
// has no parent here. Whatever else runs in the container has one, also when its
// own has died.
func fromOutside(conn *net.UnixConn) bool {
	pid, err := socket.Peer(conn)
	if err != nil || pid == 0 {
		return err == nil
	}
	parent, _, err := lookUp(pid)
	return err == nil && parent == 0
}

// borrow is the host at the other ends of what is lent with a message.
func borrow(conn *net.UnixConn, oob []byte) (*host, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d messages: %w", len(messages), errors.Join(err, unix.EINVAL))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		_ = unix.SetNonblock(fd, true)                                 // so that a Close ends a Read
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // as much as is allowed, where it is a pipe
		files = append(files, os.NewFile(uintptr(fd), "host"))
	}
	if len(files) != 2 {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, fmt.Errorf("%d descriptors: %w", len(files), unix.EINVAL)
	}
	return &host{files[0], files[1], conn}, nil
}

func (h *host) Read(b []byte) (int, error)  { return h.in.Read(b) }
func (h *host) Write(b []byte) (int, error) { return h.out.Write(b) }

// CloseWrite tells the host that nothing more will come.
func (h *host) CloseWrite() error { return errors.Join(h.out.Close(), h.lender.Close()) }

// Close implements io.Closer.
func (h *host) Close() error { return errors.Join(h.in.Close(), h.out.Close(), h.lender.Close()) }
