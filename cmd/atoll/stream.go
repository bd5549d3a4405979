package main

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
)

// streamFlags say what of this process is lent to a command; run and exec
// share them.
type streamFlags struct {
	stdin      bool
	tty        bool
	detachKeys string
	json       bool
	limit      atoll.Bytes
}

func (f *streamFlags) register(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.stdin, "interactive", "i", false, "pass our stdin on to the command")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal (without a name: where tty has to find one, run script or tmux inside)")
	fs.StringVar(&f.detachKeys, "detach-keys", defaultDetachKeys, "`keys` that leave the command to itself; \"\" for none")
	fs.BoolVar(&f.json, "json", false, "print the exit code and the output as one JSON object when the command has ended")
	f.limit = atoll.DefaultOutputLimit
	fs.Var((*bytesValue)(&f.limit), "output-limit", "how much of each output --json shows")
}

// console begins a console of these flags.
func (f *streamFlags) console(ctx context.Context, a *app) (*console, error) {
	keys, err := parseKeys(f.detachKeys)
	if err != nil {
		return nil, err
	}
	if f.json && f.tty {
		return nil, usagef("--json does not go with -t")
	}
	if f.limit < 0 {
		return nil, usagef("--output-limit %s: say how much, like 64k", f.limit)
	}
	s, err := a.newConsole(ctx, consoleOptions{stdin: f.stdin, tty: f.tty, detach: keys})
	if err == nil && f.json {
		s.stdout, s.stderr = newHead(f.limit), newHead(f.limit)
	}
	return s, err
}

// A result is what --json prints of a command. Output that is not UTF-8 is in
// the fields for bytes, which are base64.
type result struct {
	ID              string `json:"id"` // of the sandbox
	atoll.Exit             // code, signal, timed_out, reason, duration
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutBytes     []byte `json:"stdout_bytes,omitempty"`
	StderrBytes     []byte `json:"stderr_bytes,omitempty"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

// finish prints what --json wants to see and ends with the command's exit code.
func (f *streamFlags) finish(a *app, s *console, id string, exit atoll.Exit) error {
	if f.json {
		r := result{ID: id, Exit: exit}
		r.Stdout, r.StdoutBytes, r.StdoutTruncated = s.stdout.(*head).result()
		r.Stderr, r.StderrBytes, r.StderrTruncated = s.stderr.(*head).result()
		if err := a.printJSON(r); err != nil {
			return err
		}
		return asExit(exit)
	}
	switch {
	case exit.TimedOut:
		a.say("the command ran into its time limit")
	case exit.Reason != "":
		a.say("the command ended: %s", exit.Reason)
	}
	return asExit(exit)
}

func (h *head) result() (text string, data []byte, truncated bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, truncated := h.kept.Bytes(), h.kept.Truncated()
	whole := b
	if truncated {
		whole = wholeRunes(b)
	}
	if utf8.Valid(whole) {
		return string(whole), nil, truncated
	}
	return "", b, truncated
}

// wholeRunes drops the beginning of a character that was cut off at the end.
func wholeRunes(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			return b
		}
	}
	return b
}

// gap tells of output that was dropped before anyone read it.
func (s *console) gap(stream atoll.Stream, from, to int64) {
	s.app.say("%s of %s was dropped before it could be read", byteCount(to-from), stream)
}

// byteCount prints n for people.
func byteCount(n int64) string {
	const k = 1024
	switch {
	case n < k:
		return fmt.Sprintf("%d B", n)
	case n < k*k:
		return fmt.Sprintf("%.1f KiB", float64(n)/k)
	case n < k*k*k:
		return fmt.Sprintf("%.1f MiB", float64(n)/(k*k))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(k*k*k))
}
