package modal

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	sdk "github.com/modal-labs/libmodal/modal-go"
)

// A conn is the stdio of a program that Modal executes in a sandbox.
type conn struct {
	process *sdk.ContainerProcess
	byes    *sync.WaitGroup // counts a Close that goes on

	closing sync.Once
	over    chan struct{} // closed with it

	writing sync.Mutex // messages are numbered

	mu   sync.Mutex
	said strings.Builder // on stderr
}

// execute has the guest's program executed once more in a sandbox. Its stream lasts until it
// is closed, whatever becomes of ctx.
func (p *Provider) execute(ctx context.Context, life, what string) (*conn, error) {
	client, err := p.service.client()
	if err != nil {
		return nil, err
	}
	box, err := client.Sandboxes.FromID(ctx, life)
	if err != nil {
		return nil, err
	}
	process, err := box.Exec(ctx, []string{guestPath, what}, &sdk.SandboxExecParams{Workdir: "/"})
	if err != nil {
		return nil, err
	}
	c := &conn{process: process, byes: &p.byes, over: make(chan struct{})}
	go c.listen()
	return c, nil
}

// saidLimit is how much of stderr is kept.
const saidLimit = 4 << 10

// listen keeps what the program says on stderr, for complaint.
func (c *conn) listen() {
	buf := make([]byte, saidLimit)
	for {
		n, err := c.process.Stderr.Read(buf)
		c.mu.Lock()
		c.said.Write(buf[:min(n, max(0, saidLimit-c.said.Len()))])
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader: what the program writes to stdout.
func (c *conn) Read(b []byte) (int, error) { return c.process.Stdout.Read(b) }

// pieceSize is how much is sent in one message.
const pieceSize = 1 << 20

// Write implements io.Writer: what the program reads from stdin. Each message is
// acknowledged before the next one is sent.
func (c *conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for len(b) > 0 {
		select {
		case <-c.over:
			return n, io.ErrClosedPipe
		default:
		}
		sent, err := c.process.Stdin.Write(b[:min(len(b), pieceSize)])
		n += sent
		if err != nil {
			return n, err
		}
		b = b[sent:]
	}
	return n, nil
}

// CloseWrite tells the program that nothing more will come.
func (c *conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.process.Stdin.Close()
}

// Close implements io.Closer. The program ends when it reads that nothing more will come.
func (c *conn) Close() error {
	c.closing.Do(func() {
		close(c.over)
		c.byes.Go(func() {
			_ = c.CloseWrite() // whose sandbox may have ended
			_ = c.process.Stdout.Close()
			_ = c.process.Stderr.Close()
		})
	})
	return nil
}

// complaint is what the program has said on stderr.
func (c *conn) complaint() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.said.String()); text != "" {
		return fmt.Errorf("it says %q", text)
	}
	return nil
}
