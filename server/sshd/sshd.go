// Package sshd gives people and their tools access to sandboxes by SSH: ssh, scp, sftp,
// and programs based on them. It is a front end, like package api: it works with any
// Provider.
//
//	server, err := sshd.New(p, sshd.Options{AuthorizedKeys: keys, HostKey: path})
//	if err != nil {
//		return err
//	}
//	return server.Serve(ctx, listener)
//
// The user name selects the sandbox: by its id, its name, or "project.name". Neither
// projects nor names contain a dot. Clients without an authorized key learn nothing
// about sandboxes: the name is resolved after the login, for every session.
//
// Sessions, with or without a terminal, run the sandbox's shell, or a command line with
// it; sftp, scp and sshfs also work in the work directory of a stopped sandbox, if the
// provider supports that; and clients can connect to ports inside (ssh -L, -W).
//
// The server refuses ports of the client's side (-R), agents (-A) and X11, and prints the
// reason on the client's stderr. It refuses socket files, passwords and certificates.
package sshd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// Options configure a Server. AuthorizedKeys and HostKey are required.
type Options struct {
	// AuthorizedKeys is the file of the public keys that may log in, one per line, in
	// OpenSSH's format. Every login reads it again, so changes need no restart. Only
	// root or the user that runs this process may be able to change it. See [CheckKeys]
	// for the options that a line may begin with.
	AuthorizedKeys string
	// HostKey is the file of the server's private key; a missing one is created.
	HostKey string

	// Project is the project of sandboxes if the user name has none; empty means
	// atoll.DefaultProject.
	Project string

	// MaxUpload is the size of the largest file that sftp may write, in bytes; 0 means no
	// limit.
	MaxUpload int64

	// Log gets a line for each login and each session: the user, address and purpose,
	// never input or data. Nil discards.
	Log *slog.Logger
}

// Bounds for clients before the login.
const (
	loginGrace    = time.Minute // time to log in
	maxHostLogins = 32          // logins in progress from one host
	maxLogins     = 256         // logins in progress
	maxTries      = 6           // offered keys
)

// Bounds for logged-in clients.
const (
	maxChannels = 64               // per connection
	aliveEvery  = 30 * time.Second // interval of keepalives; the answer may take twice that
	closeGrace  = 2 * time.Second  // time to read that the server is closing
)

// version is the server's version string. OpenSSH's clients use their extensions only
// if the name begins like theirs. One extension reports that nobody reads a command's
// output: without it "ssh web yes | head" would never end.
const version = "SSH-2.0-OpenSSH_Atoll"

// A Server serves a Provider by SSH.
type Server struct {
	provider atoll.Provider
	opts     Options
	log      *slog.Logger
	config   *ssh.ServerConfig
	hostKey  ssh.Signer

	logins     *loginSlots
	loginGrace time.Duration
	aliveEvery time.Duration

	refusalTime time.Duration
}

// New returns a server for p, which the caller closes after Serve has returned. It
// reads or creates the host key, and checks the authorized keys. Kinds: ErrInvalid,
// ErrDenied (others may read or change those files), ErrNotExist (no authorized keys),
// ErrInternal.
func New(p atoll.Provider, opts Options) (*Server, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if err := CheckKeys(opts.AuthorizedKeys); err != nil {
		return nil, err
	}
	key, err := loadHostKey(opts.HostKey)
	if err != nil {
		return nil, err
	}
	s := &Server{
		provider: p, opts: opts, log: opts.Log, hostKey: key,
		logins: newLoginSlots(maxHostLogins, maxLogins), loginGrace: loginGrace, aliveEvery: aliveEvery,
		refusalTime: refusalTime,
	}
	s.config = &ssh.ServerConfig{
		MaxAuthTries:      maxTries,
		PublicKeyCallback: s.authorizeKey,
		ServerVersion:     version,
	}
	s.config.AddHostKey(key)
	return s, nil
}

// HostKey returns the fingerprint of the server's key, as ssh shows it.
func (s *Server) HostKey() string { return ssh.FingerprintSHA256(s.hostKey.PublicKey()) }

// Serve serves connections to l until ctx ends, which is no error, or l fails. Then it
// ends all sessions: a process with a terminal gets a hangup, and files that sftp writes
// keep what has arrived. When Serve returns, l is closed and nothing that it
// started is left.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return atoll.E("serve", l.Addr().String(), atoll.ErrUnavailable, err)
		case err != nil: // perhaps too many open files, a temporary state
			pause = min(2*pause+10*time.Millisecond, time.Second)
			s.log.WarnContext(ctx, "ssh: cannot accept a connection", "err", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		release, ok := s.logins.reserveSlot(nc.RemoteAddr())
		if !ok {
			s.log.WarnContext(ctx, "ssh: rejected a connection, since too many logins are in progress", "from", nc.RemoteAddr().String())
			nc.Close()
			continue
		}
		conns.Go(func() { s.serveConn(ctx, nc, release) })
	}
}

// serveConn serves one connection, and calls release after the login.
func (s *Server) serveConn(ctx context.Context, nc net.Conn, release func()) {
	defer nc.Close()
	sc, channels, requests, err := s.acceptLogin(ctx, nc)
	release()
	if err != nil {
		return
	}
	c := newConn(ctx, s, sc)
	c.log.InfoContext(c.ctx, "ssh: login")
	c.serve(channels, requests)
	c.log.InfoContext(c.ctx, "ssh: logout")
}

func (s *Server) acceptLogin(ctx context.Context, nc net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	_ = nc.SetDeadline(time.Now().Add(s.loginGrace)) // a connection without deadlines fails soon enough
	sc, channels, requests, err := ssh.NewServerConn(nc, s.config)
	if err != nil {
		s.log.InfoContext(ctx, "ssh: no login", "from", nc.RemoteAddr().String(), "err", err)
		return nil, nil, nil, err
	}
	_ = nc.SetDeadline(time.Time{})
	return sc, channels, requests, nil
}
