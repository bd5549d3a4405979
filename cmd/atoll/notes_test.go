package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

func TestNotes(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	tests := []struct {
		name string
		log  func(*slog.Logger)
		want string
	}{
		{"info is not for people", func(l *slog.Logger) { l.Info("sweep", "sandbox", id) }, ""},
		{"debug neither", func(l *slog.Logger) { l.Debug("retry") }, ""},
		{"a sentence", func(l *slog.Logger) { l.Warn("the keeper does not end") }, "warning: the keeper does not end"},
		{"of a sandbox, with details", func(l *slog.Logger) { l.Warn("keeper is killed", "sandbox", id, "pid", 12, "dir", "/x") },
			"warning: sandbox 0123456789ab: keeper is killed (pid 12, dir /x)"},
		{"an error", func(l *slog.Logger) { l.Error("sweep", "err", atoll.Errorf("", "", atoll.ErrDenied, "no\n\trights")) },
			"error: sweep: no rights"},
		{"why, and what came of it", func(l *slog.Logger) { l.Error("remove", "reason", "its time was over", "err", errors.New("busy")) },
			"error: remove: its time was over: busy"},
		{"attributes and groups given before", func(l *slog.Logger) { l.With("sandbox", id).WithGroup("g").Warn("stop", "n", 1) },
			"warning: sandbox 0123456789ab: stop (n 1)"},
	}
	for _, tt := range tests {
		got := ""
		tt.log(slog.New(&noteHandler{printMessage: func(format string, args ...any) { got += fmt.Sprintf(format, args...) }}))
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestNotesAreShort(t *testing.T) {
	got := ""
	log := slog.New(&noteHandler{printMessage: func(format string, args ...any) { got = fmt.Sprintf(format, args...) }})
	log.Warn("stop", "err", errors.New(strings.Repeat("ä", 1000)))
	if n := utf8.RuneCountInString(got); n > maxNote+50 || !strings.HasSuffix(got, "--log-level warn)") || !utf8.ValidString(got) {
		t.Errorf("%d characters: %q, want it cut off, and how to see the rest", n, got)
	}
}
