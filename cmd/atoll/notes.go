package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/config"
)

// newNoteLogger returns the logger of commands other than serve. Unless the user has configured the log, it prints
// warnings as short lines for people.
func (a *app) newNoteLogger(cfg *config.Config) *slog.Logger {
	if cfg.IsSet("log.level") || cfg.IsSet("log.format") {
		return a.newLogger(cfg, defaultLogLevel)
	}
	return slog.New(&noteHandler{printMessage: a.printMessage})
}

// A noteHandler is a slog.Handler that prints each warning or error as one short line. The attributes "sandbox",
// "reason" and "err" are part of the sentence, others follow it.
type noteHandler struct {
	printMessage func(format string, args ...any)
	attrs        []slog.Attr
}

// maxNote is the maximum length of a note in characters.
const maxNote = 240

// Enabled implements slog.Handler.
func (h *noteHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= defaultLogLevel
}

// WithAttrs implements slog.Handler.
func (h *noteHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &noteHandler{h.printMessage, slices.Concat(h.attrs, attrs)}
}

// WithGroup implements slog.Handler. It ignores groups.
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
	h.printMessage("%s: %s", word, shortenNote(formatNote(r.Message, attrs)))
	return nil
}

// formatNote joins a message and its attributes to a sentence.
func formatNote(msg string, attrs []slog.Attr) string {
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

// shortenNote shortens a long note and says how to get the whole text.
func shortenNote(s string) string {
	r := []rune(s)
	if len(r) <= maxNote {
		return s
	}
	return string(r[:maxNote]) + "… (all of it: --log-level warn)"
}
