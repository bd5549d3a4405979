package client

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Exec implements atoll.Sandbox. A command with streams has a stream connection, which also carries
// its exit. A command without streams uses plain requests to start and to wait, so it holds no
// connection while it runs.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := checkUTF8(s.id, cmd); err != nil {
		return nil, err
	}
	if cmd.Stdin == nil && cmd.Stdout == nil && cmd.Stderr == nil {
		var reply wire.IDReply
		if err := s.callSandbox(ctx, call{op: "exec", method: "POST", path: "/processes", body: cmd, reply: &reply}); err != nil {
			return nil, err
		}
		return &process{sb: s, id: reply.ID}, nil
	}
	if s.c.opts.Patience == 0 {
		run, id, err := s.startExec(ctx, cmd, nil)
		if err != nil {
			return nil, err
		}
		return &process{sb: s, id: id, stream: run}, nil
	}
	p := &process{sb: s}
	p.resumable = newResumableStream(p, cmd.Stdin, cmd.Stdout, cmd.Stderr)
	retry := retrier{c: s.c}
	for {
		run, id, err := s.startExec(ctx, cmd, p.resumable)
		if err == nil {
			p.id = id
			go p.resumable.followExec(run)
			return p, nil
		}
		if !retry.allowRetry(ctx, err, false) {
			if p.resumable.input != nil {
				p.resumable.input.closeInput()
			}
			return nil, ctxErr(ctx, err)
		}
	}
}

// checkUTF8 returns ErrInvalid for a command that JSON cannot carry.
func checkUTF8(id string, cmd *atoll.Command) error {
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
		if k, _, _ := strings.Cut(kv, "="); !utf8.ValidString(kv) { // the error omits the value, which may be a secret
			return atoll.Errorf("exec", id, atoll.ErrInvalid, "environment %q: must be UTF-8 to go over the wire", k)
		}
	}
	return errors.Join(check("dir", cmd.Dir), check("user", cmd.User))
}

// startExec starts cmd over a stream connection, with the command's own streams or those of t.
func (s *sandbox) startExec(ctx context.Context, cmd *atoll.Command, t *resumableStream) (*processStream, string, error) {
	first := wire.Message{Type: wire.MsgExec, Command: cmd, Stdin: cmd.Stdin != nil}
	stdin, stdout, stderr := cmd.Stdin, cmd.Stdout, cmd.Stderr
	if t != nil {
		stdout, stderr = t.stdout.activeWriter(), t.stderr.activeWriter()
		if t.input != nil {
			stdin = t.input.nextReader()
		}
	}
	run, reply, err := s.c.openStream(ctx, call{op: "exec", id: s.id, path: s.path + "/exec"}, first, stdin, stdout, stderr, nil)
	return run, reply.ID, err
}
