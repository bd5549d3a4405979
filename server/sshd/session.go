package sshd

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// A session is a channel that runs a program or sftp.
type session struct {
	conn *conn
	ch   ssh.Channel

	// Settings that the client sends before it starts something.
	env     []string
	tty     *atoll.Size // nil without a terminal
	started bool
	notices []string // what was refused, which the client does not print

	reads     context.Context // ends when the client stops reading output
	stopReads context.CancelFunc
	sizes     chan atoll.Size   // the latest size not sent to the terminal yet
	signals   chan atoll.Signal // not sent to the process yet
	work      sync.WaitGroup
}

// maxVars is the most variables that a client may send.
const maxVars = 64

// serveSession serves a channel until both sides have closed it.
func (c *conn) serveSession(nc ssh.NewChannel) {
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	s := &session{conn: c, ch: ch, sizes: make(chan atoll.Size, 1), signals: make(chan atoll.Signal, 16)}
	defer s.work.Wait()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel() // the client has closed its side and sees no more output
	s.reads, s.stopReads = context.WithCancel(ctx)
	for r := range requests {
		start, err := s.handleRequest(r.Type, r.Payload)
		if r.WantReply {
			_ = r.Reply(err == nil, nil) // the reader notices a lost connection
		}
		if err == nil && start != nil {
			s.started = true
			s.work.Go(func() { s.runProgram(ctx, start) })
		}
	}
}

var errNotNow = errors.New("not possible now")

// A program is the purpose of a session. Its error is sent to the client.
type program func(ctx context.Context) (atoll.Exit, error)

// handleRequest performs a request, or returns the program that it starts. It never
// waits, since that would block the whole connection.
func (s *session) handleRequest(kind string, payload []byte) (start program, err error) {
	switch kind {
	case "eow@openssh.com": // the client's reader has closed its end
		s.stopReads()
		return nil, nil
	case "window-change":
		size, err := parseResize(payload)
		if err == nil && s.tty != nil {
			s.setSize(size)
			return nil, nil
		}
		return nil, errNotNow
	case "signal":
		sig, err := parseSignal(payload)
		if err != nil {
			return nil, err
		}
		select {
		case s.signals <- sig:
			return nil, nil
		default:
			return nil, errNotNow
		}
	}
	if s.started {
		return nil, errNotNow
	}
	switch kind {
	case "env":
		return nil, s.setEnv(payload)
	case "pty-req":
		return nil, s.setTerminal(payload)
	case "shell":
		return s.newCommand("shell", ""), nil
	case "exec":
		line, err := parseCommand(payload)
		return s.newCommand("command", line), err
	case "subsystem":
		if name, err := parseSubsystem(payload); err != nil || name != "sftp" {
			return nil, errNotNow
		}
		return s.serveSFTP, nil
	}
	if notice, ok := refusedRequests[kind]; ok && !slices.Contains(s.notices, notice) {
		s.notices = append(s.notices, notice)
	}
	return nil, errNotNow
}

// refusedRequests are the requests of which the client's user learns why they are
// refused. Each would let programs in the sandbox act on the client's side.
var refusedRequests = map[string]string{
	"auth-agent-req@openssh.com": "the agent is not forwarded (-A), because programs in the sandbox could log in with your keys: " +
		"use git and scp on your side, or give the sandbox a key of its own",
	"x11-req": "X11 is not forwarded (-X), because programs in the sandbox could read your screen and keyboard: " +
		"run a VNC server in the sandbox, and connect to its port with -L",
}

func (s *session) setEnv(payload []byte) error {
	kv, err := parseEnv(payload)
	if err == nil && len(s.env) == maxVars {
		err = errNotNow
	}
	if err == nil {
		s.env = append(s.env, kv)
	}
	return err
}

func (s *session) setTerminal(payload []byte) error {
	term, size, err := parsePTY(payload)
	if err != nil || !s.conn.pty || s.tty != nil {
		return errNotNow
	}
	s.tty = &size
	if term != "" {
		s.env = append(s.env, "TERM="+term)
	}
	return nil
}

// setSize queues a new size for the terminal, replacing a queued one.
func (s *session) setSize(size atoll.Size) {
	select {
	case <-s.sizes:
	default:
	}
	s.sizes <- size // only the goroutine that reads requests sends
}

// runProgram runs the session's program, and reports its exit to the client. It sends
// no end of output before that: a client with nothing more to send might close the
// channel then, and get no exit code.
func (s *session) runProgram(ctx context.Context, start program) {
	var exit atoll.Exit
	err := s.printNotices(ctx)
	if err == nil {
		exit, err = start(ctx)
	}
	if err != nil {
		exit = atoll.Exit{Code: s.reportError(err)}
	}
	kind, payload := exitMessage(exit)
	_, _ = s.ch.SendRequest(kind, false, payload) // fails if the client has gone
	_ = s.ch.Close()
}

// printNotices tells the client's user what was refused. If the client leaves because of
// that, its error is that of ctx.
func (s *session) printNotices(ctx context.Context) error {
	for _, notice := range s.notices {
		s.printLine(notice)
	}
	return s.conn.reportRefusal(ctx, s)
}

// printLine prints a line on the client's stderr.
func (s *session) printLine(text string) {
	end := "\n"
	if s.tty != nil {
		end = "\r\n"
	}
	_, _ = io.WriteString(s.ch.Stderr(), "atoll: "+cleanText(text)+end) // fails if the client has gone
}

// Exit codes of commands that did not start, or whose end is unknown.
const (
	exitCannot   = 126 // the command exists but could not be started
	exitNotThere = 127 // the command, or its shell, doesn't exist
	exitOwn      = 255 // ssh's own code for a failed connection
)

// reportError prints an error for the client, and returns an exit code.
func (s *session) reportError(err error) int {
	if s.conn.ctx.Err() != nil {
		err = errClosing
	}
	s.printLine(err.Error())
	switch {
	case errors.Is(err, atoll.ErrCommandNotFound):
		return exitNotThere
	case errors.Is(err, atoll.ErrExecFailed):
		return exitCannot
	}
	return exitOwn
}

var errClosing = errors.New("the server is closing")

// cleanText replaces control characters, which a terminal would obey: error texts
// contain foreign strings.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		if printable.IsUnsafe(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
