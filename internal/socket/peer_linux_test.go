package socket

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestPeer(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if pid, err := Peer(conn.(*net.UnixConn)); pid != os.Getpid() || err != nil {
		t.Errorf("Peer = %d, %v; want this process, %d", pid, err, os.Getpid())
	}
}
