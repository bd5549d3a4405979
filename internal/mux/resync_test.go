package mux

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// A serial port goes on when one of its hosts has gone: what that had sent stays, and what
// is sent to nobody waits.
type serial struct {
	guest net.Conn // the guest's end
	wires net.Conn // the other one, of which hosts are given parts

	mu     sync.Mutex
	host   net.Conn
	heard  chan struct{} // closed when all is on the wire that the host has sent
	behind sync.WaitGroup
}

func newSerial(t *testing.T) *serial {
	s := &serial{}
	s.guest, s.wires = tcpPair(t)
	s.behind.Go(func() {
		buf := make([]byte, 5000)
		for {
			n, err := s.wires.Read(buf)
			if err != nil {
				return
			}
			s.mu.Lock()
			if s.host != nil {
				_, _ = s.host.Write(buf[:n]) // a host that is gone does not get it
			}
			s.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		s.wires.Close()
		s.unplug()
		s.behind.Wait()
	})
	return s
}

// plug returns the end of a new host.
func (s *serial) plug(t *testing.T) net.Conn {
	ours, theirs := tcpPair(t)
	s.unplug()
	s.mu.Lock()
	heard := make(chan struct{})
	s.host, s.heard = ours, heard
	s.mu.Unlock()
	s.behind.Go(func() {
		defer close(heard)
		_, _ = io.Copy(s.wires, ours)
	})
	return theirs
}

// unplug ends the host that there is: there is one at a time.
func (s *serial) unplug() {
	s.mu.Lock()
	host, heard := s.host, s.heard
	s.host = nil
	s.mu.Unlock()
	if host != nil {
		host.Close()
		<-heard
	}
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// echo is a guest that says what it hears, on port 7.
func echo(s *Session) {
	l := s.Listen()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			port, err := Asked(conn, time.Minute)
			if err != nil || port != 7 || Grant(conn, port) != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
		}()
	}
}

func serveEcho(t *testing.T, s *serial) {
	done := make(chan error, 1)
	go func() { done <- Guest(s.guest, echo) }()
	t.Cleanup(func() {
		s.guest.Close()
		<-done
	})
}

func dialEcho(t *testing.T, s *Session) net.Conn {
	t.Helper()
	conn, err := s.Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if err := Connect(t.Context(), conn, 7); err != nil {
		t.Fatalf("Connect: %v", err)
	}
	return conn
}

// check sends data there and back, at once, and ends its own direction.
func check(t *testing.T, s *Session, size int) {
	t.Helper()
	conn := dialEcho(t, s)
	defer conn.Close()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	go func() {
		_, _ = conn.Write(data)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	back, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(back, data) {
		t.Fatalf("%d of %d bytes came back, %v", len(back), size, err)
	}
}

// Hosts die in the middle of anything, at random moments, and the next one finds the guest
// as if it were the first.
func TestHostsComeAndGo(t *testing.T) {
	s := newSerial(t)
	serveEcho(t, s)
	hosts := 60
	if testing.Short() {
		hosts = 20
	}
	for i := range hosts {
		wire := s.plug(t)
		session, err := Host(t.Context(), wire)
		if err != nil {
			t.Fatalf("host %d: %v", i, err)
		}
		check(t, session, 100_000)
		noise := make([]byte, 1<<20)
		for range 3 {
			conn := dialEcho(t, session)
			go func() { _, _ = conn.Write(noise) }()
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
		time.Sleep(time.Duration(mathrand.IntN(3000)) * time.Microsecond)
		wire.Close() // with whatever was on its way
		session.Close()
	}
}

// A host ignores the bytes of others before it on the wire.
func TestGarbage(t *testing.T) {
	half := append([]byte{lengthMark, 0, 0x40, 0}, greetingPrefix...)
	for _, before := range [][]byte{nil, {lengthMark}, {lengthMark, 0}, {lengthMark, 0, 0x3f}, {lengthMark, 0, 0x40}, {lengthMark, 0, 0x40, 0}, {0, 0}, greetingPrefix, greetingPrefix[:5], half, bytes.Repeat([]byte{lengthMark}, 70_000)} {
		s := newSerial(t)
		if _, err := s.wires.Write(before); err != nil {
			t.Fatal(err)
		}
		serveEcho(t, s)
		wire := s.plug(t)
		session, err := Host(t.Context(), wire)
		if err != nil {
			t.Fatalf("after %.20q: %v", before, err)
		}
		check(t, session, 1000)
		session.Close()
	}
}

// A greeting that passes through as data does not greet.
func TestGreetingAsData(t *testing.T) {
	s := newSerial(t)
	serveEcho(t, s)
	session, err := Host(t.Context(), s.plug(t))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	conn := dialEcho(t, session)
	defer conn.Close()
	data := bytes.Repeat(append(make([]byte, maxPiece+headSize), append(greetingPrefix, answerPrefix...)...), 20)
	go func() { _, _ = conn.Write(data) }()
	back := make([]byte, len(data))
	if _, err := io.ReadFull(conn, back); err != nil || !bytes.Equal(back, data) {
		t.Errorf("it came back otherwise, %v", err)
	}
}

// A guest that does not answer is not waited for longer than the caller wants.
func TestSilentGuest(t *testing.T) {
	s := newSerial(t)
	defer s.guest.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Host(ctx, s.plug(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Host: %v", err)
	}
}

func TestConnect(t *testing.T) {
	for answer, want := range map[string]string{
		"OK 52\n": "", "OK 1073741824\n": "", "": ErrRefused.Error(), "OK \n": "answers", "OK x\n": "answers", "ERR 52\n": "answers", "OK 52": ErrRefused.Error(),
		"a line that is as long as none should ever be\n": "not an answer",
	} {
		near, far := net.Pipe()
		go func() {
			_, _ = io.ReadFull(far, make([]byte, len("CONNECT 52\n")))
			_, _ = io.WriteString(far, answer)
			far.Close()
		}()
		err := Connect(t.Context(), near, 52)
		if want == "" && err != nil || want != "" && (err == nil || !bytes.Contains([]byte(err.Error()), []byte(want))) {
			t.Errorf("after %q: %v, want %q", answer, err, want)
		}
		near.Close()
	}
	near, far := net.Pipe() // it accepts, and says nothing
	defer far.Close()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Connect(ctx, near, 52); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent end: %v", err)
	}
	near.Close()
}

func TestAsked(t *testing.T) {
	for text, ok := range map[string]bool{"CONNECT 52\n": true, "CONNECT 4294967296\n": false, "CONNECT -1\n": false, "GET / HTTP/1.1\n": false, "\n": false} {
		near, far := net.Pipe()
		go func() { _, _ = io.WriteString(near, text) }()
		if port, err := Asked(far, time.Minute); (err == nil) != ok || ok && port != 52 {
			t.Errorf("%q: %d, %v", text, port, err)
		}
		near.Close() // not before: a pipe whose other end is closed takes no deadline
		far.Close()
	}
	near, far := net.Pipe()
	defer near.Close()
	if _, err := Asked(far, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent end: %v", err)
	}
	far.Close()
}

// Whatever is on the wire, a host that comes after it is heard.
func FuzzGarbage(f *testing.F) {
	f.Add([]byte{lengthMark, 0, 0x40, 0})
	f.Add(greetingPrefix)
	f.Fuzz(func(t *testing.T, before []byte) {
		in, out := io.Pipe()
		var said bytes.Buffer
		guest := struct {
			io.Reader
			io.Writer
			io.Closer
		}{in, &said, in}
		done := make(chan error, 1)
		sessions := make(chan *Session, 1000)
		go func() { done <- Guest(guest, func(s *Session) { sessions <- s }) }()
		nonce := bytes.Repeat([]byte{7}, nonceLen)
		_, _ = out.Write(before)
		_, _ = out.Write(append(append(make([]byte, maxPiece+2*headSize), greetingPrefix...), nonce...))
		out.Close()
		<-done
		if !bytes.HasSuffix(said.Bytes(), append(bytes.Clone(answerPrefix), nonce...)) {
			t.Errorf("it said %q", said.Bytes())
		}
	})
}

func BenchmarkEcho(b *testing.B) {
	near, far := net.Pipe()
	go func() { _ = Guest(far, echo) }()
	session, err := Host(b.Context(), near)
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	conn, err := session.Open()
	if err == nil {
		err = Connect(b.Context(), conn, 7)
	}
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := conn.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			b.Fatal(err)
		}
	}
}
