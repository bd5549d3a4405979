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

// The first byte of a connection tells its kind: from a program that lends its descriptors, which
// come with the byte, or from a host itself.
const (
	kindLender = 0
	kindHost   = 1
)

// Greet begins a connection from a host itself to a Machine.
func Greet(conn net.Conn) error {
	_, err := conn.Write([]byte{kindHost})
	return err
}

// Lend passes the descriptors of this program's stdin and stdout to the Machine at the other end of
// conn, which serves the host at their other ends, and returns when the Machine is done. So no byte
// passes through this program.
func Lend(conn *net.UnixConn, stdin, stdout *os.File) error {
	rights := unix.UnixRights(int(stdin.Fd()), int(stdout.Fd()))
	if _, _, err := conn.WriteMsgUnix([]byte{kindLender}, rights, nil); err != nil {
		return err
	}
	if err := errors.Join(stdin.Close(), stdout.Close()); err != nil { // the Machine's close must be the last
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	return err
}

// A host is connected to the other ends of lent descriptors.
type host struct {
	in, out *os.File
	lender  *net.UnixConn
}

// handshakeTimeout bounds the handshake of a connection.
const handshakeTimeout = 10 * time.Second

// pipeSize is the size of pipes to a host: the larger a pipe, the less often each side waits for
// the other.
const pipeSize = 1 << 20

// acceptHost returns the connection to a host: conn itself, or the descriptors lent on it by a
// program that the container's engine has executed. It refuses all others, because they would get
// the rights of this process.
func acceptHost(conn *net.UnixConn) (io.ReadWriteCloser, error) {
	if !fromOutside(conn) {
		return nil, errors.New("connection from inside the container refused")
	}
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
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
	if first[0] == kindHost {
		return conn, nil
	}
	return receiveHost(conn, oob[:n])
}

// fromOutside reports whether the process at the other end does not belong to the container: either
// it is in none of its PID namespaces, which only an administrator of the computer can achieve, or
// the engine has executed it, and it has no parent here. All other processes in the container have
// a parent, also after their own has died.
func fromOutside(conn *net.UnixConn) bool {
	pid, err := socket.Peer(conn)
	if err != nil || pid == 0 {
		return err == nil
	}
	parent, _, err := lookUp(pid)
	return err == nil && parent == 0
}

// receiveHost returns the host at the other ends of the descriptors in a message.
func receiveHost(conn *net.UnixConn, oob []byte) (*host, error) {
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
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // up to the kernel's limit, if it is a pipe
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

// CloseWrite ends the data to the host.
func (h *host) CloseWrite() error { return errors.Join(h.out.Close(), h.lender.Close()) }

// Close implements io.Closer.
func (h *host) Close() error { return errors.Join(h.in.Close(), h.out.Close(), h.lender.Close()) }
