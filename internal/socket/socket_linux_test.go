package socket

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestPair(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if _, err := ours.Write([]byte("there")); err != nil {
		t.Fatal(err)
	}
	if err := ours.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(theirs); string(data) != "there" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
	if _, err := theirs.WriteString("back"); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if data, err := io.ReadAll(ours); string(data) != "back" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
}

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
