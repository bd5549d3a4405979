package guest

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A machine that has no descriptor left for one more host goes on when it has, and
// does not end its sandbox.
func TestServeWithoutDescriptors(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "socket"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	host, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	next, err := os.Open(os.DevNull) // takes the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	full := unix.Rlimit{Cur: uint64(next.Fd()), Max: before.Max}
	next.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	_, refused := l.AcceptUnix()
	served := make(chan error, 1)
	go func() { served <- (&Machine{}).Serve(l) }()
	var ended error
	select {
	case ended = <-served:
	case <-time.After(50 * time.Millisecond):
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if ended != nil {
		t.Fatalf("Serve ended: %v", ended)
	}
	if !errors.Is(refused, unix.EMFILE) {
		t.Fatalf("Accept: %v, want it without a descriptor", refused)
	}
	if n, err := host.Read(make([]byte, 1)); err != io.EOF { // as a stranger, it is turned away
		t.Errorf("Read = %d, %v, want the end", n, err)
	}
	l.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
}
