//go:build unix

// Package fakevmm has fake hypervisors for tests on machines that cannot run the real ones:
// Firecracker with its jailer, and vfkit. Their command lines, services and sockets are like those of
// the real ones. Behind the sockets is either a guest in the fake's own process, which follows a
// script, or a guest in a QEMU machine (Machine), which boots the real kernel with the real disks.
//
//	func TestMain(m *testing.M) {
//		if filepath.Base(os.Args[0]) == "firecracker" {
//			os.Exit(fakevmm.Firecracker(os.Args))
//		}
//		...
package fakevmm

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"sync"
)

// A Machine describes the QEMU machine that a fake runs.
type Machine struct {
	Program string // absolute path, since the fake has no environment
	Accel   string // "kvm" or "tcg"
}

// GuestPort is the port on which a guest without a machine serves files, like the real guest.
const GuestPort = 52

// joinConns copies data between two connections, until both directions have ended. It reads conn
// through in.
func joinConns(conn net.Conn, in *bufio.Reader, inner net.Conn) {
	defer inner.Close()
	var both sync.WaitGroup
	both.Go(func() { copyHalf(inner, in, conn) })
	both.Go(func() { copyHalf(conn, inner, inner) })
	both.Wait()
}

// copyHalf copies in, which reads src, to dst, and then closes dst for writing.
func copyHalf(dst net.Conn, in io.Reader, src net.Conn) {
	_, err := io.Copy(dst, in)
	half, ok := dst.(interface{ CloseWrite() error })
	if !ok || cmp.Or(err, half.CloseWrite()) != nil {
		dst.Close()
		src.Close()
	}
}
