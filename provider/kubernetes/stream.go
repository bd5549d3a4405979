package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
)

// A conn is the stdio of a program that a node executes in a pod, as messages over a WebSocket:
// the first byte of each message names its stream. client-go's client of this protocol is not
// used because it leaves goroutines behind that wake up every five seconds.
type conn struct {
	ws        *websocket.Conn
	halfClose bool // the other side supports half-closed streams
	cancel    context.CancelFunc
	ctx       context.Context // ends with the connection

	message io.Reader // the rest of the message that Read returns

	mu      sync.Mutex
	stderr  bytes.Buffer // the beginning of the program's stderr
	exitErr error        // how the program ended, as its node says
}

// The streams.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelError  = 3
	channelClose  = 255 // names a stream that has ended
)

// The versions of the protocol that this package speaks. Version 5 has half-closed streams,
// since Kubernetes 1.30; version 4 is as old as Kubernetes.
const (
	protocol5 = "v5.channel.k8s.io"
	protocol4 = "v4.channel.k8s.io"
)

// dialExec connects to the exec endpoint at that URL, which executes a program.
func dialExec(ctx context.Context, client *http.Client, at *url.URL) (*conn, error) {
	ws, resp, err := websocket.Dial(ctx, at.String(), &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{protocol5, protocol4}})
	if err != nil {
		return nil, upgradeError(resp, err)
	}
	ws.SetReadLimit(-1)
	c := &conn{ws: ws, halfClose: ws.Subprotocol() == protocol5}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.keepAlive()
	return c, nil
}

// upgradeError returns the API server's error for a refused upgrade. Kinds: ErrDenied.
func upgradeError(resp *http.Response, err error) error {
	if resp == nil || resp.Body == nil {
		return err
	}
	var status metav1.Status
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // as much as there is
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		err = errors.New(status.Message)
	}
	if resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusUnauthorized {
		return atoll.E("connect", "", atoll.ErrDenied, err)
	}
	return err
}

// pingInterval is the time between pings: proxies may drop a silent connection.
const pingInterval = 30 * time.Second

func (c *conn) keepAlive() {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(c.ctx, pingInterval)
		err := c.ws.Ping(ctx)
		cancel()
		if err != nil {
			_ = c.ws.CloseNow()
			return
		}
	}
}

// Read implements io.Reader. It reads the program's stdout.
func (c *conn) Read(b []byte) (int, error) {
	for {
		if c.message == nil {
			if err := c.nextMessage(); err != nil {
				return 0, err
			}
		}
		n, err := c.message.Read(b)
		if err == io.EOF {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// nextMessage waits for a message of stdout.
func (c *conn) nextMessage() error {
	for {
		_, r, err := c.ws.Reader(c.ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return io.EOF
		}
		if err != nil {
			return err
		}
		var channel [1]byte
		if _, err := io.ReadFull(r, channel[:]); err != nil {
			return err
		}
		if channel[0] == channelStdout {
			c.message = r
			return nil
		}
		if err := c.handleMessage(channel[0], r); err != nil {
			return err
		}
	}
}

// stderrLimit is the number of bytes of stderr that a conn stores.
const stderrLimit = 4 << 10

// handleMessage handles a message of another stream.
func (c *conn) handleMessage(channel byte, r io.Reader) error {
	text, err := io.ReadAll(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch channel {
	case channelStderr:
		c.stderr.Write(text[:min(len(text), max(0, stderrLimit-c.stderr.Len()))])
	case channelError:
		var status metav1.Status
		if json.Unmarshal(text, &status) == nil && status.Status != metav1.StatusSuccess {
			c.exitErr = errors.New(status.Message)
		}
		if err == nil {
			err = io.EOF // the program has ended
		}
	}
	return err
}

// messageSize is the largest payload of a message.
const messageSize = 32 << 10

// Write implements io.Writer. It writes to the program's stdin.
func (c *conn) Write(b []byte) (n int, err error) {
	message := make([]byte, 0, min(len(b), messageSize)+1)
	for len(b) > 0 {
		piece := b[:min(len(b), messageSize)]
		message = append(append(message[:0], channelStdin), piece...)
		if err := c.ws.Write(c.ctx, websocket.MessageBinary, message); err != nil {
			return n, err
		}
		n, b = n+len(piece), b[len(piece):]
	}
	return n, nil
}

// CloseWrite ends the program's stdin, if the protocol supports it. Errors:
// errors.ErrUnsupported.
func (c *conn) CloseWrite() error {
	if !c.halfClose {
		return errors.ErrUnsupported
	}
	return c.ws.Write(c.ctx, websocket.MessageBinary, []byte{channelClose, channelStdin})
}

// Close implements io.Closer.
func (c *conn) Close() error {
	c.cancel()
	return c.ws.CloseNow()
}

// stderrError returns what the program has written to stderr, or else the node's error.
func (c *conn) stderrError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.stderr.String()); text != "" {
		return fmt.Errorf("stderr: %q", text)
	}
	return c.exitErr
}
