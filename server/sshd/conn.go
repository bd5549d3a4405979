package sshd

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A conn is a connection of a logged-in user.
type conn struct {
	server *Server
	ssh    *ssh.ServerConn
	login
	log *slog.Logger

	ctx      context.Context // ends with the connection, or when the server closes
	cancel   context.CancelFunc
	channels chan struct{} // one slot per open channel
	work     sync.WaitGroup

	shellMu sync.Mutex
	shell   string // of the sandbox; "" if not known yet

	refusal refusal
}

func newConn(ctx context.Context, s *Server, sc *ssh.ServerConn) *conn {
	who := sc.Permissions.ExtraData[grantKey{}].(login)
	c := &conn{
		server: s, ssh: sc, login: who, channels: make(chan struct{}, maxChannels),
		log: s.log.With("user", sc.User(), "key", who.fingerprint, "account", who.account.Name, "from", sc.RemoteAddr().String()),
	}
	c.ctx, c.cancel = context.WithCancel(auth.WithOrigin(auth.WithAccount(ctx, who.account), auth.Origin{Via: "ssh", Address: sc.RemoteAddr().String()}))
	return c
}

// serve returns when the connection and everything on it have ended.
func (c *conn) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	defer c.work.Wait()
	defer c.cancel()
	c.work.Go(c.closeWhenDone)
	c.work.Go(func() { c.refuseRequests(requests) })
	c.work.Go(c.keepAlive)
	for nc := range channels {
		c.openChannel(nc)
	}
}

// closeWhenDone closes the connection after its ctx has ended and its channels are
// closed, or after closeGrace, in which sessions tell their clients the reason.
func (c *conn) closeWhenDone() {
	<-c.ctx.Done()
	timer := time.AfterFunc(closeGrace, func() { c.ssh.Close() })
	for range cap(c.channels) { // succeeds when no channel is open
		c.channels <- struct{}{}
	}
	timer.Stop()
	c.ssh.Close() // may be closed already
}

// keepAlive closes the connection of a client that has vanished silently.
func (c *conn) keepAlive() {
	every := time.NewTicker(c.server.aliveEvery)
	defer every.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-every.C:
		}
		late := time.AfterFunc(2*c.server.aliveEvery, func() {
			c.log.InfoContext(c.ctx, "ssh: the client has stopped answering")
			c.ssh.Close()
		})
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// openChannel accepts or rejects a channel. It ignores errors of a rejection.
func (c *conn) openChannel(nc ssh.NewChannel) {
	serve := map[string]func(ssh.NewChannel){
		"session": c.serveSession, "direct-tcpip": c.forwardPort, "direct-streamlocal@openssh.com": refuseSocket,
	}[nc.ChannelType()]
	if serve == nil {
		_ = nc.Reject(ssh.UnknownChannelType, "atoll: channel type not supported")
		return
	}
	select {
	case c.channels <- struct{}{}:
		c.work.Go(func() {
			defer func() { <-c.channels }()
			serve(nc)
		})
	default:
		_ = nc.Reject(ssh.ResourceShortage, "atoll: too many channels are open")
	}
}

// findSandbox returns the sandbox that the user name currently stands for.
func (c *conn) findSandbox(ctx context.Context) (atoll.Sandbox, error) {
	project, name := c.login.account.ProjectOr(cmp.Or(c.server.opts.Project, atoll.DefaultProject)), c.ssh.User()
	if before, after, ok := strings.Cut(name, "."); ok {
		project, name = before, after
		if !atoll.ValidName(project) {
			return nil, atoll.E("get", c.ssh.User(), atoll.ErrNotFound, nil)
		}
	}
	return atoll.Resolve(ctx, c.server.provider, project, name)
}

// shellOf returns the shell that runs command lines. It detects the shell once.
func (c *conn) shellOf(ctx context.Context, sb atoll.Sandbox) (string, error) {
	c.shellMu.Lock()
	defer c.shellMu.Unlock()
	if c.shell == "" {
		shell, err := atoll.DetectShell(ctx, sb, "", nil)
		if err != nil {
			return "", err
		}
		c.shell = shell
	}
	return c.shell, nil
}
