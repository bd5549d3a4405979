package sshd

import (
	"context"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// A refusal is the answer to a request to forward a port of the server's side (-R). Such
// an answer has no text, so a session prints the reason. A client may leave because of
// the answer (ExitOnForwardFailure), so the session comes first.
type refusal struct {
	mu       sync.Mutex
	answered chan struct{} // closed after the answer; nil before a request
	reported chan struct{} // closed when no session has to print the reason any more
	taken    bool          // a session prints it
}

// refusalTime bounds the waiting for a session, and for each answer of a client.
const refusalTime = 2 * time.Second

const refusalText = "ports of your side are not forwarded (-R), because programs in the sandbox must not reach them: " +
	"use -L to reach a port in the sandbox, or run the server in the sandbox"

// refuseRequests refuses the requests of the connection. That is also the answer to a
// keepalive.
func (c *conn) refuseRequests(requests <-chan *ssh.Request) {
	for r := range requests {
		answered := func() {}
		if r.Type == "tcpip-forward" || r.Type == "streamlocal-forward@openssh.com" {
			answered = c.awaitReport()
		}
		if r.WantReply {
			_ = r.Reply(false, nil) // fails if the client has gone
		}
		answered()
	}
}

// awaitReport waits, for the first request, until a session has printed the reason, or
// none begins. The caller calls answered after its answer.
func (c *conn) awaitReport() (answered func()) {
	f := &c.refusal
	f.mu.Lock()
	if f.answered != nil {
		f.mu.Unlock()
		return func() {}
	}
	f.answered, f.reported = make(chan struct{}), make(chan struct{})
	f.mu.Unlock()
	late := time.NewTimer(c.server.refusalTime)
	defer late.Stop()
	select {
	case <-f.reported:
	case <-c.ctx.Done():
	case <-late.C:
		f.mu.Lock()
		taken := f.taken
		f.taken = true // another session has nothing to do with this request
		f.mu.Unlock()
		if taken {
			select {
			case <-f.reported:
			case <-c.ctx.Done():
			}
		}
	}
	return func() { close(f.answered) }
}

// reportRefusal prints the reason of a refusal on the session's stderr, if that is due.
// It returns when the client has printed it and has had the answer, or the error of ctx
// if the client has left then.
func (c *conn) reportRefusal(ctx context.Context, s *session) error {
	f := &c.refusal
	f.mu.Lock()
	due := f.answered != nil && !f.taken
	f.taken = f.taken || due
	f.mu.Unlock()
	if !due {
		return nil
	}
	s.printLine(refusalText)
	// OpenSSH prints what it has received before it reads the next packets: after the first
	// answer it has received the line, and after the second one it has printed it.
	s.awaitClient(ctx)
	s.awaitClient(ctx)
	close(f.reported)
	select {
	case <-f.answered:
	case <-ctx.Done():
	}
	s.awaitClient(ctx)
	return ctx.Err()
}

// awaitClient waits for an answer of the client.
func (s *session) awaitClient(ctx context.Context) {
	answered := make(chan struct{})
	s.work.Go(func() { // ends with the channel at the latest
		_, _ = s.ch.SendRequest("keepalive@openssh.com", true, nil)
		close(answered)
	})
	late := time.NewTimer(s.conn.server.refusalTime)
	defer late.Stop()
	select {
	case <-answered:
	case <-ctx.Done():
	case <-late.C: // some clients never answer
	}
}

// refuseSocket refuses a connection to a socket file: a sandbox only has connections to
// ports.
func refuseSocket(nc ssh.NewChannel) {
	_ = nc.Reject(ssh.Prohibited, "atoll: socket files in the sandbox are not forwarded: let the program listen on a port of localhost, or run \"socat - UNIX-CONNECT:PATH\" in the sandbox over ssh")
}
