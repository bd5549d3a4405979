package supervisor

import (
	"io"
	"os"
	"sync"
)

// pipeConn are a Line of two pipes, for systems on which no socket is inherited.
type pipeConn struct {
	in, out *os.File

	mu    sync.Mutex
	heard []byte // and not read yet
	ended bool   // no more comes
	more  *sync.Cond
}

// newPipeConn returns the Line that hears what comes from in, and says what goes to out.
func newPipeConn(in, out *os.File) *pipeConn {
	p := &pipeConn{in: in, out: out}
	p.more = sync.NewCond(&p.mu)
	go p.readAhead()
	return p
}

// readAhead reads ahead: that the other end has gone is known at once.
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

// Read implements Line.
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

// Write implements Line.
func (p *pipeConn) Write(b []byte) (int, error) { return p.out.Write(b) }

// CloseWrite implements Line. It does not wait for who writes, and he not for ever: the
// other end reads, or is ended.
func (p *pipeConn) CloseWrite() error {
	go p.out.Close()
	return nil
}

// HungUp implements Line.
func (p *pipeConn) HungUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Close implements Line. What still comes is heard by nobody.
func (p *pipeConn) Close() error {
	go p.in.Close() // as CloseWrite
	return p.CloseWrite()
}
