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
	closingStreams *sync.WaitGroup // counts the closes in progress

	closing sync.Once
	closed  chan struct{} // closed by Close

	writing sync.Mutex // serializes writes, because messages are numbered

	mu     sync.Mutex
	stderr strings.Builder // the beginning of the program's stderr
}

// execGuest executes the guest's program once more in an instance. The stream lasts until it is
// closed, even if ctx ends.
func (p *Provider) execGuest(ctx context.Context, instanceID, what string) (*conn, error) {
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	box, err := client.Sandboxes.FromID(ctx, instanceID)
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

// stderrLimit is the number of bytes of stderr that a conn stores.
const stderrLimit = 4 << 10

// collectStderr stores the program's stderr, for stderrError.
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

// Read implements io.Reader. It reads the program's stdout.
func (c *conn) Read(b []byte) (int, error) { return c.process.Stdout.Read(b) }

// pieceSize is the largest payload of a message.
const pieceSize = 1 << 20

// Write implements io.Writer. It writes to the program's stdin. It sends a message when the one
// before is acknowledged.
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

// CloseWrite ends the program's stdin.
func (c *conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.process.Stdin.Close()
}

// Close implements io.Closer. The program ends when it reads the end of its stdin.
func (c *conn) Close() error {
	c.closing.Do(func() {
		close(c.closed)
		c.closingStreams.Go(func() {
			_ = c.CloseWrite() // the sandbox may have ended
			_ = c.process.Stdout.Close()
			_ = c.process.Stderr.Close()
		})
	})
	return nil
}

// stderrError returns what the program has written to stderr.
func (c *conn) stderrError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.stderr.String()); text != "" {
		return fmt.Errorf("stderr: %q", text)
	}
	return nil
}
