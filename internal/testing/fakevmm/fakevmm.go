//go:build unix

// Package fakevmm has hypervisors for tests where they cannot be: Firecracker with its
// jailer, and vfkit. Their command lines, services and sockets are like those of the real
// ones. Who is behind the sockets is either a guest without a machine, which does what a
// script says, or one in a machine of QEMU's (Machine), in which the real kernel boots with
// the real disks.
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

// A Machine says what QEMU the machine of a fake runs on.
type Machine struct {
	Program string // an absolute path: the fake has no environment
	Accel   string // "kvm" or "tcg"
}

// GuestPort is where a guest without a machine serves files, as the real one does.
const GuestPort = 52

// joinConns pours each connection into the other, of which in reads one.
func joinConns(conn net.Conn, in *bufio.Reader, inner net.Conn) {
	defer inner.Close()
	var both sync.WaitGroup
	both.Go(func() { copyHalf(inner, in, conn) })
	both.Go(func() { copyHalf(conn, inner, inner) })
	both.Wait()
}

// copyHalf copies what comes from in, which reads src, to its end, and says so to dst.
func copyHalf(dst net.Conn, in io.Reader, src net.Conn) {
	_, err := io.Copy(dst, in)
	half, ok := dst.(interface{ CloseWrite() error })
	if !ok || cmp.Or(err, half.CloseWrite()) != nil {
		dst.Close()
		src.Close()
	}
}
