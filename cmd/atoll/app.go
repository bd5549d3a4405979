package main

import (
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
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/trace"
)

// An app is one run of the program.
type app struct {
	stdin, stdout, stderr *os.File
	env                   []string
	raw                   atomic.Bool // the terminal passes on all bytes, and ends no lines for us

	configFile string
	flags      map[string]string // settings given as flags, by their key
	cfg        *config.Config
	long       bool // the command goes on for long, as a server does

	noSuch error // of a command that is not there, found while its help was wanted

	traces   *trace.Traces // nil when the command has no span
	endTrace func(error)
}

// config reads the configuration, once.
func (a *app) config() (*config.Config, error) {
	if a.cfg != nil {
		return a.cfg, nil
	}
	cfg, err := config.Load(config.Source{File: a.configFile, Env: a.env, Flags: a.flags})
	if err != nil {
		return nil, err
	}
	a.cfg = cfg
	log := a.notes(cfg)
	for _, text := range cfg.Warnings() {
		log.Warn(text)
	}
	return cfg, nil
}

// project is the project that the user has named, by whatever means, for
// commands that are about all projects otherwise; "" when there is none.
func (a *app) project() (string, error) {
	cfg, err := a.config()
	if err != nil || !cfg.IsSet("project") {
		return "", err
	}
	return cfg.Project, nil
}

// log writes to stderr what cfg wants to see; auto is the level that "auto"
// stands for.
func (a *app) log(cfg *config.Config, auto slog.Level) *slog.Logger {
	level := auto
	if cfg.Log.Level != "auto" {
		_ = level.UnmarshalText([]byte(cfg.Log.Level)) // config lets only known words pass
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, opts))
	}
	return slog.New(slog.NewTextHandler(a.stderr, opts))
}

// with runs f with a connection, and ends what f waits for on SIGINT, SIGTERM
// and SIGHUP. It is how commands that run nothing in a sandbox work.
func (a *app) with(cmd *cobra.Command, f func(ctx context.Context, c *connection) error) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	c, err := a.connect(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	err = f(ctx, c)
	return interrupted(ctx, errors.Join(err, c.Close()))
}

// withSandbox is with for commands on one sandbox.
func (a *app) withSandbox(cmd *cobra.Command, ref string, f func(ctx context.Context, c *connection, sb atoll.Sandbox) error) error {
	return a.with(cmd, func(ctx context.Context, c *connection) error {
		sb, err := c.find(ctx, ref)
		if err != nil {
			return err
		}
		return f(ctx, c, sb)
	})
}

// atOnce is how many sandboxes are worked on at the same time.
const atOnce = 8

// errNothing says that nothing had to be done: no name is printed.
var errNothing = errors.New("nothing to do")

// eachSandbox runs f on every sandbox named, several at once, prints the name
// of each that is done, in order, and goes on past failures.
func (a *app) eachSandbox(cmd *cobra.Command, refs []string, f func(ctx context.Context, sb atoll.Sandbox) error) error {
	return a.with(cmd, func(ctx context.Context, c *connection) error {
		return a.each(refs, func(ref string) error {
			sb, err := c.find(ctx, ref)
			if err != nil {
				return err
			}
			return f(ctx, sb)
		})
	})
}

func (a *app) each(names []string, f func(name string) error) error {
	errs := make([]error, len(names))
	done := make([]chan struct{}, len(names))
	slots := make(chan struct{}, atOnce)
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

// printJSON prints v for scripts, indented on a terminal.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	if isTerminal(a.stdout) {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

// printTable prints rows for people. The first row is the head.
func (a *app) printTable(rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell, "")
		}
		if _, err := io.WriteString(w, strings.Join(cells, "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// printable shows the control characters of s, but those in keep, instead of
// having a terminal obey them: names and messages can come from inside a
// sandbox.
func printable(s, keep string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) && !strings.ContainsRune(keep, r) {
			fmt.Fprintf(&b, "\\x%02x", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// orEmpty makes a nil slice print as [].
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// shownName is how people call a sandbox.
func shownName(st atoll.Status) string {
	if st.Spec.Name != "" && (st.Spec.Project == "" || st.Spec.Project == atoll.DefaultProject) {
		return st.Spec.Name
	}
	return shortID(st.ID)
}

func shortID(id string) string { return id[:min(12, len(id))] }

// printEvent prints v as one line of JSON, also on a terminal.
func (a *app) printEvent(v any) error { return json.NewEncoder(a.stdout).Encode(v) }

// interrupted prefers the signal that ended ctx to the failures that followed.
func interrupted(ctx context.Context, err error) error {
	var sig signalError
	if err != nil && errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return err
}
