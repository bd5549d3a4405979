package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func execRoutes() []Route {
	const exec = "/v1/sandboxes/{id}/exec"
	return []Route{
		{
			Method: "POST", Path: exec, Name: "execInSandbox", Tag: "processes", Summary: "Run a command and wait for it",
			Doc: "The command is killed if the client disconnects. `stdout` and `stderr` have the first `limit` bytes of the output; " +
				"output that is not UTF-8 is encoded as `base64`.",
			Body: jsonOf[execRequest](), Reply: jsonOf[execReply](), serve: (*Handler).serveRun,
		},
		{
			Method: "GET", Path: exec, Name: "streamExecInSandbox", Tag: "processes", Summary: "Start a command and stream its input and output over a WebSocket",
			Doc: "The first message is `exec` with the command; the description of the API has the others. " +
				"The process continues if the client disconnects.",
			Status: http.StatusSwitchingProtocols, Stream: jsonOf[wire.Message](), serve: (*Handler).serveExec,
		},
	}
}

// An execRequest is a Command with its complete input.
type execRequest struct {
	atoll.Command
	Stdin         string      `json:"stdin,omitempty"`          // the complete input
	StdinEncoding string      `json:"stdin_encoding,omitempty"` // "" or "utf-8" for text, or "base64"
	Limit         atoll.Bytes `json:"limit,omitempty"`          // of each output; 0 means 1 MiB
}

// An execReply is the exit and the output of a command.
type execReply struct {
	atoll.Exit
	Stdout          string `json:"stdout"`           // the beginning of the output
	StdoutEncoding  string `json:"stdout_encoding"`  // "utf-8" or "base64"
	StdoutTruncated bool   `json:"stdout_truncated"` // there was more output than the limit
	Stderr          string `json:"stderr"`           // the beginning of the errors
	StderrEncoding  string `json:"stderr_encoding"`  // "utf-8" or "base64"
	StderrTruncated bool   `json:"stderr_truncated"` // there were more errors than the limit
}

const (
	encodingText   = "utf-8"
	encodingBase64 = "base64"
)

func (h *Handler) serveRun(w http.ResponseWriter, r *http.Request) error {
	var req execRequest
	if err := h.decodeBody(w, r, &req, true); err != nil {
		return err
	}
	if req.Limit < 0 || req.Limit > atoll.MaxOutputLimit {
		return invalidError("limit: must be within 0..%d", atoll.MaxOutputLimit)
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
			return invalidError("stdin: not base64: %w", err)
		}
		cmd.Stdin = bytes.NewReader(stdin)
	default:
		return invalidError("stdin_encoding %q: use utf-8 or base64", req.StdinEncoding)
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	res, err := atoll.Capture(r.Context(), sb, &cmd, int64(req.Limit))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, newExecReply(res))
	return nil
}

func newExecReply(res atoll.Result) execReply {
	reply := execReply{Exit: res.Exit, StdoutTruncated: res.StdoutTruncated, StderrTruncated: res.StderrTruncated}
	reply.Stdout, reply.StdoutEncoding = encodeText(res.Stdout, res.StdoutTruncated)
	reply.Stderr, reply.StderrEncoding = encodeText(res.Stderr, res.StderrTruncated)
	return reply
}

// encodeText returns b as text if it is UTF-8, else in base64. If b is truncated, encodeText drops
// a partial character at the end of the text.
func encodeText(b []byte, truncated bool) (text, encoding string) {
	trimmed := b
	if truncated {
		trimmed = trimPartialRune(b)
	}
	if utf8.Valid(trimmed) {
		return string(trimmed), encodingText
	}
	return base64.StdEncoding.EncodeToString(b), encodingBase64
}

// trimPartialRune returns b without a partial UTF-8 sequence at its end.
func trimPartialRune(b []byte) []byte {
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
	sb, err := h.findSandbox(r)
	if err != nil {
		return err
	}
	return h.serveStream(w, r, func(s *serverStream, first wire.Message) error {
		if first.Type != wire.MsgExec || first.Command == nil {
			return wire.ProtocolErrorf("the first message must be %q, with a command", wire.MsgExec)
		}
		cmd := *first.Command
		if first.Stdin {
			cmd.Stdin = s.OpenReader(wire.ChanStdin)
		}
		cmd.Stdout, cmd.Stderr = s.outputWriters(first)
		s.startReading()
		if err := s.ctx.Err(); err != nil {
			return err // the command was not started
		}
		p, err := sb.Exec(s.ctx, &cmd)
		if err != nil {
			return s.startUnknownError(sb.ID(), err)
		}
		if gone := s.CloseError(); gone != nil { // no client will learn the id of the process
			killProcess(s.ctx, p)
			return gone
		}
		s.setProcess(p) // even if the handler is closing: the client reaches the process through another server
		if err := s.startOutput(wire.Message{Type: wire.MsgStarted, ID: p.ID()}); err != nil {
			killProcess(s.ctx, p)
			return err
		}
		exit, err := p.Wait(s.ctx)
		if err == nil {
			err = s.ctx.Err() // the handler is closing, so some output may be unsent
		}
		if err != nil {
			return err
		}
		return s.SendMessage(wire.Message{Type: wire.MsgExit, Exit: &exit})
	})
}

// startUnknownError returns the error of a command that could not be started. If the handler is
// closing, the sandbox may have started the command, so no other server may retry it.
func (s *serverStream) startUnknownError(id string, err error) error {
	if s.ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return atoll.Errorf("exec", id, atoll.ErrUnavailable, "%v, and it is not known whether the command was started", cmp.Or(endReason(s.ctx), wire.ErrClosing))
}

// killProcess sends SIGKILL to p, even if ctx has ended.
func killProcess(ctx context.Context, p atoll.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	_ = p.Signal(ctx, atoll.SIGKILL) // fails if the process has just ended
}
