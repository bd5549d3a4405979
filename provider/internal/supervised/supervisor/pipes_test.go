package supervisor

import (
	"io"
	"os"
	"testing"
	"time"
)

// Two pipes are a connection like a socket.
func TestPipes(t *testing.T) {
	hear, say := make([]*os.File, 2), make([]*os.File, 2)
	for i := range 2 {
		var err error
		if hear[i], say[1-i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
	}
	ours, theirs := newPipeConn(hear[0], say[0]), newPipeConn(hear[1], say[1])
	var lines = []Conn{ours, theirs}
	if _, err := ours.Write([]byte("a job")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 3)
	if n, err := theirs.Read(buf); string(buf[:n]) != "a j" || err != nil {
		t.Errorf("heard %q, %v", buf[:n], err)
	}
	for _, l := range lines {
		if l.HungUp() {
			t.Error("HungUp on an open connection")
		}
	}
	if err := ours.CloseWrite(); err != nil {
		t.Error(err)
	}
	for !theirs.HungUp() {
		time.Sleep(time.Millisecond)
	}
	if data, err := io.ReadAll(theirs); string(data) != "ob" || err != nil {
		t.Errorf("heard %q, %v", data, err)
	}
	if _, err := theirs.Write([]byte("done")); err != nil || ours.HungUp() {
		t.Errorf("answer: %v", err)
	}
	if err := theirs.Close(); err != nil {
		t.Error(err)
	}
	if data, err := io.ReadAll(ours); string(data) != "done" || err != nil {
		t.Errorf("heard %q, %v", data, err)
	}
	if !ours.HungUp() {
		t.Error("not HungUp after Close")
	}
	_ = ours.Close() // half of it is closed
}
