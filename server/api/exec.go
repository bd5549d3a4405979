package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

func execRoutes() []Route {
	const exec = "/v1/sandboxes/{id}/exec"
	return []Route{
		{
			Method: "POST", Path: exec, Name: "exec", Tag: "processes", Summary: "Run a command and wait for it",
			Doc: "Whoever hangs up kills the command. `stdout` and `stderr` hold the first `limit` bytes; " +
				"their encoding is `base64` where they are not UTF-8.",
			Body: jsonOf[execRequest](), Reply: jsonOf[execReply](), serve: (*Handler).serveRun,
		},
		{
			Method: "GET", Path: exec, Name: "execStream", Tag: "processes", Summary: "Start a command and stream its input and output, over a WebSocket",
			Doc: "The first message is `exec` with the command; see the description of the API for those that follow. " +
				"The process lives on when the client has gone.",
			Status: http.StatusSwitchingProtocols, Stream: jsonOf[message](), serve: (*Handler).serveExec,
		},
	}
}

// An execRequest is a Command with its whole input.
type execRequest struct {
	atoll.Command
	Stdin         string      `json:"stdin,omitempty"`
	StdinEncoding string      `json:"stdin_encoding,omitempty"` // "" for text, "base64"
	Limit         atoll.Bytes `json:"limit,omitempty"`          // of each output; 0 means 1 MiB
}

// An execReply is how a command ended and what it printed.
type execReply struct {
	atoll.Exit
	Stdout          string `json:"stdout"`
	StdoutEncoding  string `json:"stdout_encoding"` // "utf-8" or "base64"
	StdoutTruncated bool   `json:"stdout_truncated"`
	Stderr          string `json:"stderr"`
	StderrEncoding  string `json:"stderr_encoding"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

const (
	encodingText   = "utf-8"
	encodingBase64 = "base64"
)

func (h *Handler) serveRun(w http.ResponseWriter, r *http.Request) error {
	var req execRequest
	if err := h.body(w, r, &req, true); err != nil {
		return err
	}
	if req.Limit < 0 || req.Limit > atoll.MaxOutputLimit {
		return invalid("limit: must be within 0..%d", atoll.MaxOutputLimit)
	}
	cmd := req.Command
	switch req.StdinEncoding {
	case "", encodingText:
		if req.Stdin != "" {
			cmd.Stdin = strings.NewReader(req.Stdin)
		}
	case encodingBase64:
		stdin, err := base64.StdEncoding.DecodeString(req.Stdin)
		if err != nil {
			return invalid("stdin: is not base64: %w", err)
		}
		cmd.Stdin = bytes.NewReader(stdin)
	default:
		return invalid("stdin_encoding %q: use utf-8 or base64", req.StdinEncoding)
	}
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	res, err := atoll.Capture(r.Context(), sb, &cmd, int64(req.Limit))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, replyOf(res))
	return nil
}

func replyOf(res atoll.Result) execReply {
	reply := execReply{Exit: res.Exit, StdoutTruncated: res.StdoutTruncated, StderrTruncated: res.StderrTruncated}
	reply.Stdout, reply.StdoutEncoding = encodeText(res.Stdout, res.StdoutTruncated)
	reply.Stderr, reply.StderrEncoding = encodeText(res.Stderr, res.StderrTruncated)
	return reply
}

// encodeText returns b as it is when it is text. Half a character at the end of
// what was cut off is left out, and does not make it binary.
func encodeText(b []byte, truncated bool) (text, encoding string) {
	whole := b
	if truncated {
		whole = wholeCharacters(b)
	}
	if utf8.Valid(whole) {
		return string(whole), encodingText
	}
	return base64.StdEncoding.EncodeToString(b), encodingBase64
}

// wholeCharacters is b without the beginning of a character at its end.
func wholeCharacters(b []byte) []byte {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

func (h *Handler) serveExec(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.sandbox(r)
	if err != nil {
		return err
	}
	return h.relay(w, r, func(s *relay, first message) error {
		if first.Type != msgExec || first.Command == nil {
			return violation("the first message must be %q, with a command", msgExec)
		}
		cmd := *first.Command
		if first.Stdin {
			cmd.Stdin = s.receive(chanStdin)
		}
		cmd.Stdout, cmd.Stderr = s.outputs(first)
		s.listen()
		if err := s.ctx.Err(); err != nil {
			return err // nothing was begun
		}
		p, err := sb.Exec(s.ctx, &cmd)
		if err != nil {
			return s.unknown(sb.ID(), err)
		}
		if gone := s.failure(); gone != nil { // nobody will ever know that it was started
			kill(s.ctx, p)
			return gone
		}
		s.control(p) // where the handler closes, too: the client finds it at another server
		if err := s.ready(message{Type: msgStarted, ID: p.ID()}); err != nil {
			return err
		}
		exit, err := p.Wait(s.ctx)
		if err == nil {
			err = s.ctx.Err() // of a handler that closes: some output may not have been sent
		}
		if err != nil {
			return err
		}
		return s.send(message{Type: msgExit, Exit: &exit})
	})
}

// unknown is the error of a command that could not be started. Where the handler closes, the
// start may have reached the sandbox: no other server is to be asked for it then.
func (s *relay) unknown(id string, err error) error {
	if s.ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return atoll.Errorf("exec", id, atoll.ErrUnavailable, "the server is closing, and it is not known whether the command was started")
}

// kill ends a process whatever has become of ctx.
func kill(ctx context.Context, p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	_ = p.Signal(ctx, atoll.SIGKILL) // it may just have ended
}

// Exec implements atoll.Sandbox. A command with streams gets a link of its own,
// over which its exit comes too; one without is started and waited for by
// plain requests, so that it holds no connection while it runs.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := textOnly(s.id, cmd); err != nil {
		return nil, err
	}
	if cmd.Stdin == nil && cmd.Stdout == nil && cmd.Stderr == nil {
		var reply idReply
		if err := s.call(ctx, call{op: "exec", method: "POST", path: "/processes", body: cmd, reply: &reply}); err != nil {
			return nil, err
		}
		return &process{sb: s, id: reply.ID}, nil
	}
	if s.c.opts.Patience == 0 {
		run, id, err := s.start(ctx, cmd, nil)
		if err != nil {
			return nil, err
		}
		return &process{sb: s, id: id, run: run}, nil
	}
	p := &process{sb: s}
	p.thread = newThread(p, cmd.Stdin, cmd.Stdout, cmd.Stderr)
	trial := trial{c: s.c}
	for {
		run, id, err := s.start(ctx, cmd, p.thread)
		if err == nil {
			p.id = id
			go p.thread.follow(run)
			return p, nil
		}
		if !trial.again(ctx, err, false) {
			if p.thread.in != nil {
				p.thread.in.close()
			}
			return nil, ctxErr(ctx, err)
		}
	}
}

// textOnly refuses what JSON cannot carry.
func textOnly(id string, cmd *atoll.Command) error {
	check := func(what, s string) error {
		if utf8.ValidString(s) {
			return nil
		}
		return atoll.Errorf("exec", id, atoll.ErrInvalid, "%s %q: must be UTF-8 to go over the wire", what, s)
	}
	for _, a := range cmd.Args {
		if err := check("argument", a); err != nil {
			return err
		}
	}
	for _, kv := range cmd.Env {
		if k, _, _ := strings.Cut(kv, "="); !utf8.ValidString(kv) { // its value may be a secret
			return atoll.Errorf("exec", id, atoll.ErrInvalid, "environment %q: must be UTF-8 to go over the wire", k)
		}
	}
	return errors.Join(check("dir", cmd.Dir), check("user", cmd.User))
}

// start runs cmd over a link, with its own streams or those of t.
func (s *sandbox) start(ctx context.Context, cmd *atoll.Command, t *thread) (*running, string, error) {
	first := message{Type: msgExec, Command: cmd, Stdin: cmd.Stdin != nil}
	stdin, stdout, stderr := cmd.Stdin, cmd.Stdout, cmd.Stderr
	if t != nil {
		stdout, stderr = t.out.writer(), t.errs.writer()
		if t.in != nil {
			stdin = t.in.next()
		}
	}
	run, reply, err := s.c.open(ctx, call{op: "exec", id: s.id, path: s.path + "/exec"}, first, stdin, stdout, stderr, nil)
	return run, reply.ID, err
}
