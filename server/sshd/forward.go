package sshd

import (
	"context"
	"io"
	"net"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// forwardPort connects a channel to a port inside, until both sides have closed their
// halves or one of them fails.
func (c *conn) forwardPort(nc ssh.NewChannel) {
	port, err := parseForward(nc.ExtraData())
	if err != nil || !c.forward {
		reason := "atoll: this key may not forward ports"
		if err != nil {
			reason = "atoll: " + err.Error()
		}
		_ = nc.Reject(ssh.Prohibited, reason)
		return
	}
	inside, err := c.dialPort(port)
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "atoll: "+cleanText(err.Error()))
		return
	}
	defer inside.Close()
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	cut := func() {
		inside.Close()
		_ = ch.Close() // may be closed already
	}
	defer context.AfterFunc(c.ctx, cut)()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		ssh.DiscardRequests(requests) // until the client has closed the channel
		cut()
	})
	defer cut()
	var up sync.WaitGroup
	defer up.Wait()
	up.Go(func() { copyStream(inside, ch, cut) })
	copyStream(ch, inside, cut)
}

func (c *conn) dialPort(port int) (net.Conn, error) {
	sb, err := c.findSandbox(c.ctx)
	if err != nil {
		return nil, err
	}
	c.log.InfoContext(c.ctx, "ssh: forward", "sandbox", sb.ID(), "port", port)
	return atoll.Dial(c.ctx, sb, port)
}

// copyStream copies src to dst, including its end; if that fails it cuts both.
func copyStream(dst io.Writer, src io.Reader, cut func()) {
	_, err := io.Copy(dst, src)
	half, ok := dst.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		cut()
	}
}
