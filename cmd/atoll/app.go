package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// An app is one run of the program.
type app struct {
	stdin, stdout, stderr *os.File
	env                   []string
	rawTerminal           atomic.Bool // the terminal is in raw mode: it forwards all bytes and needs \r\n

	configFile  string
	color       colorValue
	flags       map[string]string // settings given as flags, by key
	cfg         *config.Config
	longRunning bool // the command runs for long, like a server

	parsed     bool  // the command line has no mistake that the parser of flags and arguments finds
	unknownErr error // error for an unknown command, found while its help was requested

	span span
}

// loadConfig loads the configuration at the first call.
func (a *app) loadConfig() (*config.Config, error) {
	if a.cfg != nil {
		return a.cfg, nil
	}
	cfg, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	a.useConfig(cfg)
	return cfg, nil
}

// readConfig reads the configuration.
func (a *app) readConfig() (*config.Config, error) {
	return config.Load(config.Source{File: a.configFile, Env: a.env, Flags: a.flags})
}

// useConfig sets the result of loadConfig, and prints the warnings of cfg.
func (a *app) useConfig(cfg *config.Config) {
	a.cfg = cfg
	log := a.newNoteLogger(cfg)
	for _, text := range cfg.Warnings() {
		log.Warn(text)
	}
}

// namedProject returns the project that the user has set, or "" if none is set. It is for commands that otherwise
// work on all projects.
func (a *app) namedProject() (string, error) {
	cfg, err := a.loadConfig()
	if err != nil || !cfg.IsSet("project") {
		return "", err
	}
	return cfg.Project, nil
}

// newLogger returns a logger to stderr as configured. auto is the level that "auto" stands for.
func (a *app) newLogger(cfg *config.Config, auto slog.Level) *slog.Logger {
	level := auto
	if cfg.Log.Level != "auto" {
		_ = level.UnmarshalText([]byte(cfg.Log.Level)) // config accepts known levels only
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, opts))
	}
	return slog.New(slog.NewTextHandler(a.stderr, opts))
}

// withConnection runs f with a connection. SIGINT, SIGTERM and SIGHUP end the context of f. It is for commands that
// run nothing in a sandbox.
func (a *app) withConnection(cmd *cobra.Command, f func(ctx context.Context, c *connection) error) error {
	ctx, stop := interruptContext(cmd.Context())
	defer stop()
	c, err := a.openConnection(ctx)
	if err != nil {
		return preferSignal(ctx, err)
	}
	err = c.explainError(ctx, f(ctx, c))
	return preferSignal(ctx, errors.Join(err, c.Close()))
}

// withSandbox is withConnection for commands on one sandbox.
func (a *app) withSandbox(cmd *cobra.Command, ref string, f func(ctx context.Context, c *connection, sb atoll.Sandbox) error) error {
	return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
		sb, err := c.findSandbox(ctx, ref)
		if err != nil {
			return err
		}
		return f(ctx, c, sb)
	})
}

// maxConcurrent is the number of sandboxes that eachSandbox works on at a time.
const maxConcurrent = 8

// errNothing means that there was nothing to do, so eachSandbox does not print the name.
var errNothing = errors.New("nothing to do")

// eachSandbox runs f on every named sandbox, several at a time, and prints the name of each finished one in order. It
// continues after errors.
func (a *app) eachSandbox(cmd *cobra.Command, refs []string, f func(ctx context.Context, sb atoll.Sandbox) error) error {
	return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
		return a.forEach(refs, func(ref string) error {
			sb, err := c.findSandbox(ctx, ref)
			if err != nil {
				return err
			}
			return f(ctx, sb)
		})
	})
}

// forEach runs f on every name, as eachSandbox does.
func (a *app) forEach(names []string, f func(name string) error) error {
	errs := make([]error, len(names))
	done := make([]chan struct{}, len(names))
	slots := make(chan struct{}, maxConcurrent)
	var all sync.WaitGroup
	for i, name := range names {
		done[i] = make(chan struct{})
		all.Go(func() {
			slots <- struct{}{}
			errs[i] = f(name)
			<-slots
			close(done[i])
		})
	}
	for i, name := range names {
		<-done[i]
		switch errs[i] {
		case nil:
			fmt.Fprintln(a.stdout, name)
		case errNothing:
			errs[i] = nil
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// printJSON prints v as JSON, indented on a terminal.
func (a *app) printJSON(v any) error {
	return a.writeJSON(v, isTerminal(a.stdout))
}

// writeJSON prints v as JSON. Text from inside a sandbox cannot control a terminal.
func (a *app) writeJSON(v any, indent bool) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := a.stdout.Write(printable.EscapeJSON(text.Bytes()))
	return err
}

// printTable prints rows as a table. The first row is the header. States have colours, if useColor.
func (a *app) printTable(rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 3, ' ', 0)
	escaped := make([][]string, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			escaped[i] = append(escaped[i], printable.Escape(cell, ""))
		}
	}
	if a.useColor() {
		colorStates(escaped)
	}
	for _, cells := range escaped {
		if _, err := io.WriteString(w, strings.Join(cells, "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// orEmpty returns s, or an empty slice instead of nil, so that it prints as [].
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// shownName returns the name of a sandbox in output for people.
func shownName(st atoll.Status) string {
	if st.Spec.Name != "" && (st.Spec.Project == "" || st.Spec.Project == atoll.DefaultProject) {
		return st.Spec.Name
	}
	return shortID(st.ID)
}

func shortID(id string) string { return id[:min(12, len(id))] }

// printEvent prints v as one line of JSON, even on a terminal.
func (a *app) printEvent(v any) error { return a.writeJSON(v, false) }

// preferSignal returns the signal that ended ctx, if any, instead of the errors that followed.
func preferSignal(ctx context.Context, err error) error {
	var sig signalError
	if err != nil && errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return err
}
