package wire

import (
	"bytes"
	"testing"

	"github.com/coder/websocket"
)

// FuzzMessage checks that no message makes a StreamConn panic, buffer more than its window, or
// continue after a protocol error.
func FuzzMessage(f *testing.F) {
	f.Add(true, []byte("\x00data"))
	f.Add(false, []byte(`{"type":"window","stream":"stdout","bytes":5}`))
	f.Add(false, []byte(`{"type":"close","stream":"stdin","abort":true}`))
	f.Add(false, []byte(`{"type":"signal","signal":"SIGINT"}`))
	f.Add(false, []byte(`{"type":"exit","exit":{"code":1,"duration":"1s"}}`))
	f.Add(true, []byte{})
	f.Add(false, bytes.Repeat([]byte(" "), MaxMessage+1))
	f.Fuzz(func(t *testing.T, binary bool, data []byte) {
		typ := websocket.MessageText
		if binary {
			typ = websocket.MessageBinary
		}
		for _, strict := range []bool{true, false} {
			l := NewStreamConn(nil)
			in, out := l.OpenReader(ChanStdin), l.OpenWriter(ChanStdout)
			out.OpenWindow()
			if _, err := out.takeCredit(1000); err != nil {
				t.Fatal(err)
			}
			for range 8 {
				m, handled, err := l.handleFrame(typ, bytes.NewReader(data), strict)
				if in.buf.Len() > Window || out.credit > Window || out.credit < 0 {
					t.Fatalf("%d bytes are held, %d may be sent", in.buf.Len(), out.credit)
				}
				if err == nil && !handled && m.Type == "" {
					t.Fatal("a message without a type was accepted")
				}
				if err != nil {
					if err.Error() == "" {
						t.Fatal("an error without a text")
					}
					break
				}
			}
		}
	})
}
