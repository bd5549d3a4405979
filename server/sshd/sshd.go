// Package sshd lets people, and the tools they are used to, into sandboxes by
// SSH: ssh, scp, sftp, and what is built on them. It is a front-end, like package
// api: it holds a Provider and never asks which.
//
//	server, err := sshd.New(p, sshd.Options{AuthorizedKeys: keys, HostKey: path})
//	if err != nil {
//		return err
//	}
//	return server.Serve(ctx, listener)
//
// The user name says which sandbox is meant: its id, its name, or
// "project.name". Neither projects nor names have a dot in them. Who has none of
// the authorized keys learns nothing of what there is: the name is looked at
// after the login, for every session anew.
//
// There are sessions with or without a terminal, which run the sandbox's shell,
// or a command line by it; sftp, and scp by way of it, also in the work directory
// of a sandbox that is stopped, where the provider can; and connections to ports
// inside (ssh -L, -W). Ports of the server's side (-R), agents, X11, passwords
// and certificates are refused.
package sshd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// Options configure a Server. AuthorizedKeys and HostKey are required.
type Options struct {
	// AuthorizedKeys is the file of the public keys that may log in, one in each
	// line, as OpenSSH has them. It is read at every login: a key that is added
	// or taken out needs no restart. Nobody but its owner, root or the user that
	// runs this, may be able to change it. See [CheckKeys] for the options that
	// a line may begin with.
	AuthorizedKeys string
	// HostKey is the file of the server's private key, made when it is missing.
	HostKey string

	// Project is that of sandboxes whose user name has none; empty means
	// atoll.DefaultProject.
	Project string

	// Spool is the directory of files that are being written by sftp, which
	// takes them in any order: they go into the sandbox as a whole, when they
	// are closed. Empty means the system's for temporary files. Nothing is left
	// there when this process is killed.
	Spool string
	// MaxUpload is how many bytes one connection may have in files that it is
	// writing; 0 means no limit.
	MaxUpload int64

	// Log gets a line for each login and each session: who, from where and what
	// for, never what was typed or sent. nil discards.
	Log *slog.Logger
}

// Bounds on what those who have not logged in may take.
const (
	loginGrace = time.Minute // to log in
	maxLogins  = 32          // that are in progress
	maxTries   = 6           // keys that are offered
)

// And on those who have.
const (
	maxChannels = 64               // of a connection
	aliveEvery  = 30 * time.Second // until a client is asked whether it is there; for its answer it has twice that
	closeGrace  = 2 * time.Second  // to read that the server is closing
)

// version is what the server says it is. OpenSSH's clients use its extensions with
// those only whose name begins as theirs does. One of them says that nobody reads
// what a command prints: without it "ssh web yes | head" would never end.
const version = "SSH-2.0-OpenSSH_Atoll"

// A Server serves a Provider by SSH.
type Server struct {
	provider atoll.Provider
	opts     Options
	log      *slog.Logger
	config   *ssh.ServerConfig
	hostKey  ssh.Signer

	logins     chan struct{} // a place for each that is in progress
	loginGrace time.Duration
	aliveEvery time.Duration
}

// New returns a server for p, which stays the caller's to close after Serve has
// returned. It reads the host key, or makes one, and looks at the authorized
// keys. Kinds: ErrInvalid, ErrDenied (others may read or change those files),
// ErrNotExist (there are no authorized keys), ErrInternal.
func New(p atoll.Provider, opts Options) (*Server, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Spool == "" {
		opts.Spool = os.TempDir()
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
		logins: make(chan struct{}, maxLogins), loginGrace: loginGrace, aliveEvery: aliveEvery,
	}
	s.config = &ssh.ServerConfig{
		MaxAuthTries:      maxTries,
		PublicKeyCallback: s.authorize,
		ServerVersion:     version,
	}
	s.config.AddHostKey(key)
	return s, nil
}

// HostKey is the fingerprint of the server's key, as ssh shows it.
func (s *Server) HostKey() string { return ssh.FingerprintSHA256(s.hostKey.PublicKey()) }

// Serve serves those who connect to l until ctx ends, which is no error, or l
// fails. Then sessions are ended: a process with a terminal is hung up on, and
// what was written by sftp goes into the sandbox. When it returns l is closed and
// nothing that it started is left.
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
		case err != nil: // too many files are open, perhaps, which will not stay so
			pause = min(2*pause+10*time.Millisecond, time.Second)
			s.log.WarnContext(ctx, "ssh: cannot accept a connection", "err", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		select {
		case s.logins <- struct{}{}:
			conns.Go(func() { s.serve(ctx, nc) })
		default:
			s.log.WarnContext(ctx, "ssh: too many logins at once, one is turned away", "from", nc.RemoteAddr().String())
			nc.Close()
		}
	}
}

// serve sees to one connection, for which there is a place among the logins.
func (s *Server) serve(ctx context.Context, nc net.Conn) {
	defer nc.Close()
	sc, channels, requests, err := s.login(ctx, nc)
	<-s.logins
	if err != nil {
		return
	}
	c := newConn(ctx, s, sc)
	c.log.InfoContext(c.ctx, "ssh: login")
	c.serve(channels, requests)
	c.log.InfoContext(c.ctx, "ssh: logout")
}

func (s *Server) login(ctx context.Context, nc net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	_ = nc.SetDeadline(time.Now().Add(s.loginGrace)) // a connection that cannot have one fails soon enough
	sc, channels, requests, err := ssh.NewServerConn(nc, s.config)
	if err != nil {
		s.log.InfoContext(ctx, "ssh: no login", "from", nc.RemoteAddr().String(), "err", err)
		return nil, nil, nil, err
	}
	_ = nc.SetDeadline(time.Time{})
	return sc, channels, requests, nil
}
