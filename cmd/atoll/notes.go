package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/config"
)

// notes is the log of commands other than serve: where nobody has asked for
// records, what providers have to warn of is a short line for people.
func (a *app) notes(cfg *config.Config) *slog.Logger {
	if cfg.IsSet("log.level") || cfg.IsSet("log.format") {
		return a.log(cfg, defaultLogLevel)
	}
	return slog.New(&noteHandler{say: a.say})
}

// A noteHandler is a slog.Handler that says warnings and errors in one short
// line each. The attributes "sandbox", "reason" and "err" are part of the
// sentence, others follow it.
type noteHandler struct {
	say   func(format string, args ...any)
	attrs []slog.Attr
}

// mostNote is how many characters of a note are shown.
const mostNote = 240

// Enabled implements slog.Handler.
func (h *noteHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= defaultLogLevel
}

// WithAttrs implements slog.Handler.
func (h *noteHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &noteHandler{h.say, slices.Concat(h.attrs, attrs)}
}

// WithGroup implements slog.Handler. People need no groups.
func (h *noteHandler) WithGroup(string) slog.Handler { return h }

// Handle implements slog.Handler.
func (h *noteHandler) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	word := "warning"
	if r.Level >= slog.LevelError {
		word = "error"
	}
	h.say("%s: %s", word, shorten(note(r.Message, attrs)))
	return nil
}

// note joins a message and its attributes to a sentence.
func note(msg string, attrs []slog.Attr) string {
	var where string
	var rest []string
	for _, a := range attrs {
		switch v := a.Value.Resolve(); a.Key {
		case "sandbox":
			where = "sandbox " + shortID(v.String()) + ": "
		case "reason", "err":
			msg += ": " + strings.Join(strings.Fields(v.String()), " ")
		default:
			rest = append(rest, a.Key+" "+v.String())
		}
	}
	if len(rest) > 0 {
		return fmt.Sprintf("%s%s (%s)", where, msg, strings.Join(rest, ", "))
	}
	return where + msg
}

// shorten cuts off the end of a long note, which can be had.
func shorten(s string) string {
	r := []rune(s)
	if len(r) <= mostNote {
		return s
	}
	return string(r[:mostNote]) + "… (all of it: --log-level warn)"
}
