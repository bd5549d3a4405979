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

// A conn is a connection of somebody who has logged in.
type conn struct {
	server *Server
	ssh    *ssh.ServerConn
	login
	log *slog.Logger

	ctx      context.Context // ends with the connection, or when the server closes
	cancel   context.CancelFunc
	channels chan struct{} // a place for each that is open
	work     sync.WaitGroup

	shellMu sync.Mutex
	shell   string // of the sandbox, once it is known

	spooled budget
}

func newConn(ctx context.Context, s *Server, sc *ssh.ServerConn) *conn {
	who := sc.Permissions.ExtraData[grantKey{}].(login)
	c := &conn{
		server: s, ssh: sc, login: who, channels: make(chan struct{}, maxChannels),
		log: s.log.With("user", sc.User(), "key", who.fingerprint, "account", who.account.Name, "from", sc.RemoteAddr().String()),
	}
	c.spooled.left = s.opts.MaxUpload
	c.spooled.limited = s.opts.MaxUpload > 0
	c.ctx, c.cancel = context.WithCancel(auth.WithOrigin(auth.WithAccount(ctx, who.account), auth.Origin{Via: "ssh", Address: sc.RemoteAddr().String()}))
	return c
}

// serve returns when the connection has ended, and all that went on over it.
func (c *conn) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	defer c.work.Wait()
	defer c.cancel()
	c.work.Go(c.part)
	c.work.Go(func() { ssh.DiscardRequests(requests) }) // tcpip-forward among them; that a keepalive is refused is its answer
	c.work.Go(c.keepAlive)
	for nc := range channels {
		c.open(nc)
	}
}

// part closes the connection when its ctx has ended, and what is open on it: in
// closeGrace at the latest, in which sessions tell their clients why.
func (c *conn) part() {
	<-c.ctx.Done()
	timer := time.AfterFunc(closeGrace, func() { c.ssh.Close() })
	for range cap(c.channels) { // all of them are free when no channel is open
		c.channels <- struct{}{}
	}
	timer.Stop()
	c.ssh.Close() // it may be closed already
}

// keepAlive finds out that the client has vanished without a word.
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
			c.log.InfoContext(c.ctx, "ssh: the client does not answer any more")
			c.ssh.Close()
		})
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// open lets a channel in, or says why not. A refusal that does not get through
// is no loss.
func (c *conn) open(nc ssh.NewChannel) {
	serve := map[string]func(ssh.NewChannel){"session": c.session, "direct-tcpip": c.forwardPort}[nc.ChannelType()]
	if serve == nil {
		_ = nc.Reject(ssh.UnknownChannelType, "atoll: this is not possible here")
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

// sandbox finds the one that the user name stands for now.
func (c *conn) sandbox(ctx context.Context) (atoll.Sandbox, error) {
	project, name := c.login.account.ProjectOr(cmp.Or(c.server.opts.Project, atoll.DefaultProject)), c.ssh.User()
	if before, after, ok := strings.Cut(name, "."); ok {
		project, name = before, after
		if !atoll.ValidName(project) {
			return nil, atoll.E("get", c.ssh.User(), atoll.ErrNotFound, nil)
		}
	}
	return atoll.Resolve(ctx, c.server.provider, project, name)
}

// shellOf is the shell that command lines are run by. It is looked for once.
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
