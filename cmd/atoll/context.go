//go:build !client

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

func newContext(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "List and select the servers that commands use",
		Long: `A context is a server with its token and project, under a name. atoll login adds one.
Commands use the context that atoll context use has selected, or with --context or
ATOLL_CONTEXT another one. The context default stands for no server of that list:
commands then use url, or else this machine.`,
	}
	cmd.AddCommand(newContextLs(a), newContextUse(a), newContextRm(a))
	return cmd
}

// A contextView is a context in the output of atoll context ls.
type contextView struct {
	Name    string `json:"name"`
	URL     string `json:"url,omitempty"`
	Project string `json:"project,omitempty"`
	Token   string `json:"token,omitempty"` // a reference
	InUse   bool   `json:"in_use"`
}

func newContextLs(a *app) *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Short:             "List contexts",
		Aliases:           []string{"list"},
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			all := []contextView{{Name: config.DefaultContext, InUse: cfg.Context == config.DefaultContext}}
			for _, name := range slices.Sorted(maps.Keys(cfg.Contexts)) {
				one := cfg.Contexts[name]
				all = append(all, contextView{name, one.URL, one.Project, one.Token.Reference(), name == cfg.Context})
			}
			return printList(a, l, all, func(c contextView) string { return c.Name },
				[]string{"NAME", "SERVER", "PROJECT", "IN USE"},
				func(c contextView) []string {
					server := c.URL
					if c.Name == config.DefaultContext {
						server = "url, or this machine"
					}
					return []string{c.Name, server, orDash(c.Project), yesNo(c.InUse)}
				})
		},
	}
	l.addFlags(cmd, "print names only")
	return cmd
}

func newContextUse(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "use CONTEXT",
		Short: "Select the context that commands use",
		Example: `  atoll context use prod
  atoll context use default    # no server of the list`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := config.Edit(a.fileSource(), selectContext(args[0])); err != nil {
				return err
			}
			return a.noteOverridden("context")
		},
	}
}

// selectContext returns the change that selects a context.
func selectContext(name string) config.Change {
	if name == config.DefaultContext {
		return config.Change{Key: "context"}
	}
	return config.Change{Key: "context", Values: []string{name}}
}

func newContextRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm CONTEXT...",
		Short: "Remove contexts, and their tokens from this machine",
		Long: `Rm removes contexts from the configuration, with the tokens that atoll login has
stored. The tokens remain valid at the servers: see atoll key rm.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.forEachInTurn(args, a.removeContext)
		},
	}
}

// forEachInTurn calls f for each name, one after the other, and prints the names. It continues after errors.
func (a *app) forEachInTurn(names []string, f func(name string) error) error {
	var errs []error
	for _, name := range names {
		err := f(name)
		if err == nil {
			fmt.Fprintln(a.stdout, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeContext removes a context from the file, and its token.
func (a *app) removeContext(name string) error {
	cfg, err := a.loadFile()
	if err != nil {
		return err
	}
	if _, ok := cfg.Contexts[name]; !ok {
		return usageErrorf("no context is called %q: atoll context ls lists them", name)
	}
	changes := []config.Change{{Key: "contexts." + name}}
	if cfg.Context == name && !strings.HasPrefix(cfg.Origin("context"), "ATOLL_") {
		changes = append(changes, selectContext(config.DefaultContext))
	}
	if err := config.Edit(a.fileSource(), changes...); err != nil {
		return err
	}
	path, err := a.tokenFile(name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// loadFile loads the configuration without flags.
func (a *app) loadFile() (*config.Config, error) { return config.Load(a.fileSource()) }

// tokenFile returns the path of the token that login stores for a context.
func (a *app) tokenFile(name string) (string, error) {
	path, err := config.Path(a.fileSource())
	if err == nil {
		path, err = filepath.Abs(path)
	}
	return filepath.Join(filepath.Dir(path), "tokens", name), err
}

func newLogin(a *app) *cobra.Command {
	var name string
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "login [flags] URL",
		Short: "Add a server, and use it from now on",
		Long: `Login connects to a server, stores its address and your token as a context, and
selects that context: all commands then use the server. The token is that of
--token or ATOLL_TOKEN; otherwise login asks for it on a terminal. It is stored in
a file that only you can read, beside the configuration; of --token file:/path and
env:NAME only the reference is stored.

atoll context use default selects this machine again; atoll logout removes the context.`,
		Example: `  atoll login https://atoll.example.com
  atoll login --name prod --project web --token-stdin https://atoll.example.com < key`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withInterrupt(cmd, func(ctx context.Context) error { return a.logIn(ctx, args[0], name, fromStdin) })
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` of the context (default the host of URL)")
	cmd.Flags().BoolVar(&fromStdin, "token-stdin", false, "read the token from stdin")
	return cmd
}

// withInterrupt runs f with a context that SIGINT, SIGTERM and SIGHUP end.
func (a *app) withInterrupt(cmd *cobra.Command, f func(ctx context.Context) error) error {
	ctx, stop := interruptContext(cmd.Context())
	defer stop()
	return preferSignal(ctx, f(ctx))
}

// logIn checks the token at the server, and adds the context name.
func (a *app) logIn(ctx context.Context, address, name string, fromStdin bool) error {
	if !strings.Contains(address, "://") {
		return usageErrorf("%q: write the address of an Atoll server, like https://atoll.example.com; for a registry of images, use docker login", address)
	}
	a.flags["url"], a.flags["context"] = address, config.DefaultContext
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if name == "" {
		name = contextName(address)
	}
	if !atoll.ValidName(name) || name == config.DefaultContext {
		return usageErrorf("--name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_', and not %s", name, config.DefaultContext)
	}
	secret := ""
	if ref := a.flags["token"]; ref == "" {
		if secret, err = a.askToken(ctx, cfg, fromStdin); err != nil {
			return err
		}
		cfg.Token = config.NewSecret(secret)
	} else if fromStdin {
		return usageErrorf("--token-stdin cannot be combined with --token")
	}
	c, err := a.dialServer(ctx, cfg, cfg.URL)
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	if sendsClear(cfg.URL) {
		a.printMessage("warning: the token and all data are sent to %s without encryption: use https outside of a network that you trust", cfg.URL)
	}
	if err := a.addContext(name, cfg, secret); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "commands now use %s (context %s)\n", cfg.URL, name)
	return errors.Join(err, a.noteOverridden("context"))
}

// addContext stores the token unless secret is "", and adds a context that uses it.
func (a *app) addContext(name string, cfg *config.Config, secret string) error {
	key := "contexts." + name
	changes := []config.Change{{Key: key}, {Key: key + ".url", Values: []string{cfg.URL}}}
	ref := a.flags["token"]
	restore := func() error { return nil }
	if secret != "" {
		path, err := a.tokenFile(name)
		if err != nil {
			return err
		}
		if restore, err = writeToken(path, secret); err != nil {
			return err
		}
		ref = "file:" + path
	}
	if ref != "" {
		changes = append(changes, config.Change{Key: key + ".token", Values: []string{ref}})
	}
	if cfg.IsSet("project") {
		changes = append(changes, config.Change{Key: key + ".project", Values: []string{cfg.Project}})
	}
	if err := config.Edit(a.fileSource(), append(changes, selectContext(name))...); err != nil {
		return errors.Join(err, restore())
	}
	return nil
}

// writeToken writes a token to a file that only the user can read. restore puts back what was there before.
func writeToken(path, token string) (restore func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	before, err := os.ReadFile(path)
	restore = func() error { return fsutil.WriteFile(path, before) }
	if errors.Is(err, fs.ErrNotExist) {
		restore = func() error { return os.Remove(path) }
	} else if err != nil {
		return nil, err
	}
	return restore, fsutil.WriteFile(path, []byte(token+"\n"))
}

// askToken returns the token from stdin, the environment or the terminal; "" if the server is a socket of this user.
func (a *app) askToken(ctx context.Context, cfg *config.Config, fromStdin bool) (string, error) {
	switch {
	case fromStdin:
		line, err := bufio.NewReader(io.LimitReader(a.stdin, 4096)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		if line = strings.TrimSpace(line); line == "" {
			return "", usageErrorf("--token-stdin: stdin has no token")
		}
		return line, nil
	case cfg.Origin("token") == "ATOLL_TOKEN":
		return cfg.Token.Reveal()
	case strings.HasPrefix(cfg.URL, "unix:"):
		return "", nil
	case !isTerminal(a.stdin) || !isTerminal(a.stderr):
		return "", usageErrorf("stdin and stderr are not a terminal to ask for the token on: use --token-stdin, or set ATOLL_TOKEN")
	}
	return a.readPassword(ctx, "token for "+cfg.URL+": ")
}

// readPassword asks for a line on the terminal without showing it.
func (a *app) readPassword(ctx context.Context, question string) (string, error) {
	before, err := term.GetState(int(a.stdin.Fd()))
	if err != nil {
		return "", err
	}
	if _, err := a.stderr.WriteString("atoll: " + question); err != nil {
		return "", err
	}
	type answer struct {
		line []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // a read of a terminal cannot be interrupted; it ends with the program
		line, err := term.ReadPassword(int(a.stdin.Fd()))
		answers <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), term.Restore(int(a.stdin.Fd()), before))
	case got := <-answers:
		fmt.Fprintln(a.stderr)
		line := strings.TrimSpace(string(got.line))
		if got.err == nil && line == "" {
			return "", usageErrorf("no token: the server's own is in the file token of its state directory; atoll key create makes others")
		}
		return line, got.err
	}
}

func newLogout(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "logout [CONTEXT]",
		Short:             "Remove a server that login has added, with its token",
		Long:              `Logout removes a context, by default the one in use, as atoll context rm does.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			name := append(args, cfg.Context)[0]
			if name == config.DefaultContext {
				return usageErrorf("no context is in use: name one of atoll context ls")
			}
			return a.forEachInTurn([]string{name}, a.removeContext)
		},
	}
}

// contextName returns the default name of a context: the host of its server.
func contextName(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return "server"
	}
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, u.Hostname()), "-")
}

// sendsClear reports whether a token leaves this machine without encryption.
func sendsClear(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback())
}

// completeContexts completes the names of contexts.
func (a *app) completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	cfg, err := a.loadFile()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := append([]string{config.DefaultContext}, slices.Sorted(maps.Keys(cfg.Contexts))...)
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
}
