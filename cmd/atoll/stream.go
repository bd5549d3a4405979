package main

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
)

// streamFlags are the flags of streams and the terminal, which run and exec share.
type streamFlags struct {
	stdin      bool
	tty        bool
	detachKeys string
	json       bool
	limit      atoll.Bytes
}

func (f *streamFlags) addFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.stdin, "interactive", "i", false, "forward stdin to the command")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	f.addDetachFlag(fs)
	fs.BoolVar(&f.json, "json", false, "print the exit code and the output as one JSON object at the end")
	f.limit = atoll.DefaultOutputLimit
	fs.Var((*bytesValue)(&f.limit), "output-limit", "limit of each output in --json")
}

// addDetachFlag adds the flag of the keys that detach.
func (f *streamFlags) addDetachFlag(fs *pflag.FlagSet) {
	fs.StringVar(&f.detachKeys, "detach-keys", defaultDetachKeys, "`keys` that detach from the command; \"\" for none")
}

// newConsole returns a console as the flags say.
func (f *streamFlags) newConsole(ctx context.Context, a *app) (*console, error) {
	keys, err := parseKeys(f.detachKeys)
	if err != nil {
		return nil, err
	}
	if f.json && f.tty {
		return nil, usageErrorf("--json cannot be combined with -t")
	}
	if f.limit < 0 {
		return nil, usageErrorf("--output-limit %s: must not be negative", f.limit)
	}
	s, err := a.newConsole(ctx, consoleOptions{stdin: f.stdin, tty: f.tty, detach: keys})
	if err == nil && f.json {
		s.stdout, s.stderr = newHead(f.limit), newHead(f.limit)
	}
	return s, err
}

// A result is the output of --json for a command. Output that is not UTF-8 is in the fields for bytes, in base64.
type result struct {
	ID              string `json:"id"` // id of the sandbox
	atoll.Exit             // code, signal, timed_out, reason, duration
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutBytes     []byte `json:"stdout_bytes,omitempty"`
	StderrBytes     []byte `json:"stderr_bytes,omitempty"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

// finishCommand prints the result for --json, and returns the exit code of the command as an error.
func (f *streamFlags) finishCommand(a *app, s *console, id string, exit atoll.Exit) error {
	if f.json {
		r := result{ID: id, Exit: exit}
		r.Stdout, r.StdoutBytes, r.StdoutTruncated = s.stdout.(*head).readResult()
		r.Stderr, r.StderrBytes, r.StderrTruncated = s.stderr.(*head).readResult()
		if err := a.printJSON(r); err != nil {
			return err
		}
		return asExit(exit)
	}
	switch {
	case exit.TimedOut:
		a.printMessage("the command reached its time limit")
	case exit.Reason != "":
		a.printMessage("the command ended: %s", exit.Reason)
	}
	return asExit(exit)
}

// readResult returns the output as text or bytes, and whether it is truncated.
func (h *head) readResult() (text string, data []byte, truncated bool) {
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

// wholeRunes removes an incomplete character from the end.
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

// reportGap reports output that was lost before it could be read.
func (s *console) reportGap(stream atoll.Stream, from, to int64) {
	s.app.printMessage("%s of %s was dropped before it could be read", byteCount(to-from), stream)
}

// byteCount formats n for people.
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
