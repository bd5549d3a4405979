package supervisor

import (
	"io"
	"os"
	"sync"
)

// A pipeConn is a Conn over two pipes, for systems on which a process cannot inherit a
// socket.
type pipeConn struct {
	in, out *os.File

	mu    sync.Mutex
	heard []byte // received, and not read yet
	ended bool   // the other end has closed its pipe
	more  *sync.Cond
}

// newPipeConn returns a Conn that receives from in and sends to out.
func newPipeConn(in, out *os.File) *pipeConn {
	p := &pipeConn{in: in, out: out}
	p.more = sync.NewCond(&p.mu)
	go p.readAhead()
	return p
}

// readAhead reads ahead, so that HungUp knows at once that the other end has gone.
func (p *pipeConn) readAhead() {
	buf := make([]byte, 4<<10)
	for {
		n, err := p.in.Read(buf)
		p.mu.Lock()
		p.heard, p.ended = append(p.heard, buf[:n]...), err != nil
		p.mu.Unlock()
		p.more.Broadcast()
		if err != nil {
			return
		}
	}
}

// Read implements Conn.
func (p *pipeConn) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.heard) == 0 && !p.ended {
		p.more.Wait()
	}
	if len(p.heard) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.heard)
	p.heard = p.heard[n:]
	return n, nil
}

// Write implements Conn.
func (p *pipeConn) Write(b []byte) (int, error) { return p.out.Write(b) }

// CloseWrite implements Conn. It does not wait for a Write in progress, which does not last
// for ever: the other end reads, or is killed.
func (p *pipeConn) CloseWrite() error {
	go p.out.Close()
	return nil
}

// HungUp implements Conn.
func (p *pipeConn) HungUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Close implements Conn. It discards data that still arrives.
func (p *pipeConn) Close() error {
	go p.in.Close() // does not wait, like CloseWrite
	return p.CloseWrite()
}
