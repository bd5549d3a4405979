package postgres

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A fault is the treatment of a message to the server. The zero fault forwards it.
type fault int

const (
	pass  fault = iota
	cut         // breaks the connection, and does not forward the message
	lose        // forwards the message, and breaks the connection instead of the answer
	stall       // forwards nothing from now on
)

// A proxy stands before a server and injects network faults.
type proxy struct {
	dir    string // of its socket
	target string

	mu    sync.Mutex
	plan  func(kind byte, text string) fault
	conns map[net.Conn]bool
	all   sync.WaitGroup
}

// newProxy starts a proxy before a server. It ends with the test.
func newProxy(t testing.TB, on *testenv.PostgresServer) *proxy {
	t.Helper()
	const socket = ".s.PGSQL.5432"
	dir, err := os.MkdirTemp("", "proxy") // a short path
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{dir: dir, target: filepath.Join(on.Socket(), socket), conns: map[net.Conn]bool{}}
	p.set(func(byte, string) fault { return pass })
	p.all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.breakAll()
		p.all.Wait()
		os.RemoveAll(dir)
	})
	return p
}

// url returns the URL of a schema of the server, through the proxy.
func (p *proxy) url(schema string) string {
	return "postgres://atoll@/atoll?host=" + p.dir + "&search_path=" + schema
}

// set makes plan choose the fault of each later message. kind is the message type of the protocol, or 0 for the first
// message of a connection. Calls of plan do not overlap.
func (p *proxy) set(plan func(kind byte, text string) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
}

func (p *proxy) decide(kind byte, text string) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan(kind, text)
}

// breakAll breaks all open connections.
func (p *proxy) breakAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) hold(c net.Conn, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[c] = is; !is {
		delete(p.conns, c)
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.hold(client, true)
	defer p.hold(client, false)
	server, err := net.Dial("unix", p.target)
	if err != nil {
		return // the server is down
	}
	defer server.Close()
	var mu sync.Mutex
	mute, answered := false, make(chan struct{})
	p.all.Go(func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			mu.Lock()
			quiet := mute
			mu.Unlock()
			if quiet {
				close(answered)
				return
			}
			if err != nil {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	for first := true; ; first = false {
		kind, message, err := next(client, first)
		if err != nil {
			return
		}
		how := p.decide(kind, string(message))
		if how == cut {
			return
		}
		if how == lose {
			mu.Lock()
			mute = true
			mu.Unlock()
		}
		if how == stall {
			_, _ = io.Copy(io.Discard, client) // until the client gives up
			return
		}
		if _, err := server.Write(message); err != nil {
			return
		}
		if how == lose {
			select {
			case <-answered:
			case <-time.After(testenv.Scale(10 * time.Second)):
			}
			return
		}
	}
}

// next reads a message of a client, including its header. The first message has no type.
func next(r io.Reader, first bool) (kind byte, message []byte, err error) {
	head := make([]byte, 5)
	if first {
		head = head[1:]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	if !first {
		kind = head[0]
	}
	rest := make([]byte, binary.BigEndian.Uint32(head[len(head)-4:])-4)
	_, err = io.ReadFull(r, rest)
	return kind, append(head, rest...), err
}
