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

// A conn is the stdio of a program that a node executes in a pod, in messages over a
// WebSocket: the first byte of each says which stream it is of. client-go's own client of
// that protocol leaves goroutines behind that look up every five seconds.
type conn struct {
	ws        *websocket.Conn
	halfClose bool // the other side knows of half-closed streams
	cancel    context.CancelFunc
	ctx       context.Context // ends with the connection

	message io.Reader // what is left of the one that is being read

	mu      sync.Mutex
	stderr  bytes.Buffer // on stderr
	exitErr error        // what the node says of the program's end
}

// The streams.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelError  = 3
	channelClose  = 255 // names a stream that has come to its end
)

// The versions of the protocol that are known. The first has half-closed streams, since
// Kubernetes 1.30; the others are as old as it.
const (
	protocol5 = "v5.channel.k8s.io"
	protocol4 = "v4.channel.k8s.io"
)

// dialExec has a program executed that at says.
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

// upgradeError is what the API server says instead. Kinds: ErrDenied.
func upgradeError(resp *http.Response, err error) error {
	if resp == nil || resp.Body == nil {
		return err
	}
	var status metav1.Status
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what there is of it
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		err = errors.New(status.Message)
	}
	if resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusUnauthorized {
		return atoll.E("connect", "", atoll.ErrDenied, err)
	}
	return err
}

// pingInterval is how often a connection says that it is there, to those on its way who
// forget what is silent.
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

// Read implements io.Reader: what the program writes to stdout.
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

// stderrLimit is how much of stderr is kept.
const stderrLimit = 4 << 10

// handleMessage takes in a message of another stream.
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

// messageSize is how much is sent at once.
const messageSize = 32 << 10

// Write implements io.Writer: what the program reads from stdin.
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

// CloseWrite tells the program that nothing more will come, if that can be told.
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

// stderrError is what the program has said on stderr, or the node of it.
func (c *conn) stderrError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := strings.TrimSpace(c.stderr.String()); text != "" {
		return fmt.Errorf("it says %q", text)
	}
	return c.exitErr
}
