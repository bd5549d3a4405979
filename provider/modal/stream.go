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
	process        *sdk.ContainerProcess
	closingStreams *sync.WaitGroup // counts a Close that goes on

	closing sync.Once
	closed  chan struct{} // closed with it

	writing sync.Mutex // messages are numbered

	mu     sync.Mutex
	stderr strings.Builder // on stderr
}

// execGuest has the guest's program executed once more in a sandbox. Its stream lasts until it
// is closed, whatever becomes of ctx.
func (p *Provider) execGuest(ctx context.Context, life, what string) (*conn, error) {
	client, err := p.service.sdkClient()
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
	c := &conn{process: process, closingStreams: &p.closingStreams, closed: make(chan struct{})}
	go c.collectStderr()
	return c, nil
}

// stderrLimit is how much of stderr is kept.
const stderrLimit = 4 << 10

// collectStderr keeps what the program says on stderr, for complaint.
func (c *conn) collectStderr() {
	buf := make([]byte, stderrLimit)
	for {
		n, err := c.process.Stderr.Read(buf)
		c.mu.Lock()
		c.stderr.Write(buf[:min(n, max(0, stderrLimit-c.stderr.Len()))])
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
		case <-c.closed:
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
		close(c.closed)
		c.closingStreams.Go(func() {
			_ = c.CloseWrite() // whose sandbox may have ended
			_ = c.process.Stdout.Close()
			_ = c.process.Stderr.Close()
		})
	})
	return nil
}

// stderrError is what the program has said on stderr.
func (c *conn) stderrError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.stderr.String()); text != "" {
		return fmt.Errorf("it says %q", text)
	}
	return nil
}
