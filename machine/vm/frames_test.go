package vm

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

func TestFrames(t *testing.T) {
	near, far := net.Pipe()
	ours, theirs := Frames(near), Frames(far)
	large := bytes.Repeat([]byte("x"), 65535)
	go func() {
		for _, frame := range [][]byte{[]byte("one"), large, []byte("too long"), nil, []byte("last")} {
			if n, err := ours.Write(frame); n != len(frame) || err != nil {
				t.Errorf("wrote %d of %d bytes: %v", n, len(frame), err)
			}
		}
		if _, err := ours.Write(make([]byte, 65536)); err == nil {
			t.Error("a frame that is too long was sent")
		}
		near.Write([]byte{0, 9, 'c', 'u', 't'})
		ours.Close()
	}()
	b := make([]byte, 65535)
	for _, c := range []struct {
		room int
		want []byte
	}{{65535, []byte("one")}, {65535, large}, {3, []byte("too")}, {5, nil}, {5, []byte("last")}} {
		if n, err := theirs.Read(b[:c.room]); err != nil || !bytes.Equal(b[:n], c.want) {
			t.Errorf("read %.20q of %d bytes, %v, want %.20q", b[:n], n, err, c.want)
		}
	}
	if _, err := theirs.Read(b); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame that is cut off: %v", err)
	}
	if err := theirs.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Frames(far).Read(b); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after the end: %v", err)
	}
}
