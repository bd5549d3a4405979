package sshd

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// A session is one channel on which a program runs, or sftp.
type session struct {
	conn *conn
	ch   ssh.Channel

	// What the client says before it starts something.
	env     []string
	tty     *atoll.Size // nil without a terminal
	started bool

	reads   context.Context // ends when the client reads no output any more
	unread  context.CancelFunc
	sizes   chan atoll.Size   // the latest one that the terminal has not been told
	signals chan atoll.Signal // that the process has not got
	work    sync.WaitGroup
}

// maxVars is how many variables a client may send.
const maxVars = 64

// session serves a channel until both sides have closed it.
func (c *conn) session(nc ssh.NewChannel) {
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	s := &session{conn: c, ch: ch, sizes: make(chan atoll.Size, 1), signals: make(chan atoll.Signal, 16)}
	defer s.work.Wait()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel() // the client has closed its side: of what runs it will see nothing more
	s.reads, s.unread = context.WithCancel(ctx)
	for r := range requests {
		start, err := s.request(r.Type, r.Payload)
		if r.WantReply {
			_ = r.Reply(err == nil, nil) // a connection that is lost is noticed by its reader
		}
		if err == nil && start != nil {
			s.started = true
			s.work.Go(func() { s.run(ctx, start) })
		}
	}
}

var errNotNow = errors.New("not possible now")

// A program is what a session is for. Its error is told to the client.
type program func(ctx context.Context) (atoll.Exit, error)

// request does what a request says, or returns what it starts. It never waits:
// who is slow here holds up the whole connection.
func (s *session) request(kind string, payload []byte) (start program, err error) {
	switch kind {
	case "eow@openssh.com": // whoever ssh has written to has seen enough
		s.unread()
		return nil, nil
	case "window-change":
		size, err := parseResize(payload)
		if err == nil && s.tty != nil {
			s.resize(size)
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
		return s.command("shell", ""), nil
	case "exec":
		line, err := parseCommand(payload)
		return s.command("command", line), err
	case "subsystem":
		if name, err := parseSubsystem(payload); err != nil || name != "sftp" {
			return nil, errNotNow
		}
		return s.sftp, nil
	}
	return nil, errNotNow // agents, X11, and what nobody has thought of
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

// resize notes the size that the terminal shall have; of those that wait the last
// one counts.
func (s *session) resize(size atoll.Size) {
	select {
	case <-s.sizes:
	default:
	}
	s.sizes <- size // only the goroutine that reads requests sends
}

// run runs what the session is for, and tells the client how it ended. It does not
// say before that the output has: a client with nothing more to send might close the
// channel at that, and get no exit code.
func (s *session) run(ctx context.Context, start program) {
	exit, err := start(ctx)
	if err != nil {
		exit = atoll.Exit{Code: s.tell(err)}
	}
	kind, payload := exitMessage(exit)
	_, _ = s.ch.SendRequest(kind, false, payload) // a client that has gone needs neither
	_ = s.ch.Close()
}

// The exit codes of what was not run, or was not seen to its end.
const (
	exitCannot   = 126 // the command is there but could not be started
	exitNotThere = 127 // the command, or the shell to run it by, is not there
	exitOwn      = 255 // as ssh itself has for a connection that fails
)

// tell tells the client, in words and by an exit code, why there is nothing.
func (s *session) tell(err error) int {
	end := "\n"
	if s.tty != nil {
		end = "\r\n"
	}
	if s.conn.ctx.Err() != nil {
		err = errClosing
	}
	_, _ = io.WriteString(s.ch.Stderr(), "atoll: "+printable(err.Error())+end)
	switch {
	case errors.Is(err, atoll.ErrCommandNotFound):
		return exitNotThere
	case errors.Is(err, atoll.ErrExecFailed):
		return exitCannot
	}
	return exitOwn
}

var errClosing = errors.New("the server is closing")

// printable leaves out what a terminal would obey: messages repeat what others
// have said.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
