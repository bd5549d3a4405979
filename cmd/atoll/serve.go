package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/openapi"
	"github.com/seed46cd37a8/atoll/server/sshd"
)

func newServe(a *app) *cobra.Command {
	var listen []string
	var destroy bool
	var sshListen, sshKeys string
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve sandboxes to others over HTTP",
		Long: `Serve answers the HTTP API on a socket in the state directory, which only the
same user can use and where all other commands find it, and on what --listen
names besides. Who comes by TCP must bring a bearer token: that of the setting
token, else one that is made the first time, kept in the state directory and
shown once; one of accounts; or an API key, see atoll key.

With --ssh-listen it answers SSH as well, to those whose keys are in the file of
--ssh-authorized-keys: ssh NAME@host is a shell in the sandbox NAME of the server's
project, ssh PROJECT.NAME@host one of another; scp, sftp and ssh -L work too.

Agents find their tools at /mcp, by the Model Context Protocol, and at /v1/tools:
those of atoll mcp. The headers Atoll-Workflow, Atoll-Agent-Run and Atoll-Session
say whose sandbox a request is about; without them each MCP session has its own.

Conversations with agents are below /v1/conversation and /v1/sandbox: prompts are
answered with what an agent does in a sandbox of its own, as server-sent events.
Templates (template.dir) say which agent, and sync.store where its files are kept.

/metrics is for Prometheus. With OTEL_EXPORTER_OTLP_ENDPOINT set, a span for each
call is sent there, as part of the caller's trace.

At its start, and every 10 minutes (reconcile.every), it does what atoll reconcile
does, and then removes old images (image.prune).

/health says that it answers, and /readyz whether requests should be sent to it.

SIGINT and SIGTERM end it: it is not ready any more, refuses what comes, sends
clients of streams to other servers of the same store, and lets calls end for a
few seconds; a second one ends it at once. Sandboxes live on, where the provider can do that, unless
--destroy-on-exit is given, which servers that share a store (store.url) refuse.`,
		Example: `  atoll serve
  atoll serve --listen 127.0.0.1:7070
  atoll serve --ssh-listen 127.0.0.1:2222 --ssh-authorized-keys ~/.ssh/authorized_keys`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(listen) > 0 {
				a.flags["listen"] = strings.Join(listen, ",")
			}
			for key, value := range map[string]string{"ssh.listen": sshListen, "ssh.authorized_keys": sshKeys} {
				if value != "" {
					a.flags[key] = value
				}
			}
			return a.serve(cmd.Context(), destroy)
		},
	}
	cmd.Flags().StringArrayVar(&listen, "listen", nil, "`address` to listen on, unix:///path or host:port, besides the state directory's socket")
	cmd.Flags().StringVar(&sshListen, "ssh-listen", "", "`address` to listen on for SSH, host:port")
	cmd.Flags().StringVar(&sshKeys, "ssh-authorized-keys", "", "`file` of the public keys that may log in by SSH")
	cmd.Flags().BoolVar(&destroy, "destroy-on-exit", false, "at the end, remove all sandboxes with their data volumes")
	return cmd
}

func (a *app) serve(ctx context.Context, destroy bool) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if destroy && cfg.Store.URL != "" {
		return usagef("--destroy-on-exit: would remove the sandboxes of all servers that share the store (store.url): leave it out, and remove with atoll rm")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	log := a.log(cfg, slog.LevelInfo)
	ls, err := a.listen(ctx, cfg)
	if err != nil {
		return err
	}
	defer ls.close()
	metrics, err := trace.NewMetrics()
	if err != nil {
		return err
	}
	defer metrics.Close()
	traces := trace.NewTraces(ctx, trace.TracesOptions{Version: buildVersion().Version, Log: log})
	defer traces.Close()
	stackOpts := config.Options{Log: log, Calls: log, Attrs: requestAttrs, Metrics: metrics, Traces: traces, Server: true}
	if stackOpts.Audit, err = cfg.OpenAudit(ctx, stackOpts); err != nil {
		return unusable(cfg, err)
	}
	audit := stackOpts.Audit
	stack, err := config.Open(cfg, stackOpts)
	if err != nil {
		return errors.Join(unusable(cfg, err), audit.Close())
	}
	stack = closingAfter{atoll.ProviderLayer{Provider: stack}, audit}
	door, err := a.openSSH(cfg, stack, log, ls)
	if err != nil {
		return errors.Join(err, stack.Close())
	}
	tools, err := a.openTools(cfg, stack, ls, log)
	if err != nil {
		return errors.Join(err, stack.Close())
	}
	talks, endTalks, err := cfg.Conversations(ctx, stack, config.Options{Log: log, Metrics: metrics})
	if err != nil {
		if ctx.Err() != nil { // it is to end before it has begun, which is no failure
			err = nil
		}
		return errors.Join(err, tools.close(), stack.Close())
	}
	keys, err := cfg.Keys(log, audit)
	if err != nil {
		return errors.Join(err, endTalks(), tools.close(), stack.Close())
	}
	settled := a.keepReconciled(ctx, stack, cfg, log)
	opts := api.Options{
		Log: log, Metrics: metrics, MaxUpload: max(int64(cfg.MaxUpload), 0), Extract: trace.Extract, Docs: openapi.Handler(buildVersion().Version), Version: buildVersion().Version,
	}
	opts.Ready = func(ctx context.Context) error { return config.Ready(ctx, cfg, stack) }
	tools.show(&opts)
	opts.Conversations, opts.Keys, opts.Audit, opts.Denied = talks, keys, audit, audit.Refused
	err = errors.Join(a.serveOn(ctx, stack, ls, door, keys.Verify, opts), endTalks(), tools.close(), keys.Close())
	settled()
	if destroy {
		err = errors.Join(err, destroyAll(context.WithoutCancel(ctx), stack))
	}
	return errors.Join(err, stack.Close())
}

// A closingAfter is a provider whose Close closes something else, too.
type closingAfter struct {
	atoll.ProviderLayer
	after io.Closer
}

// Close implements atoll.Provider.
func (c closingAfter) Close() error { return errors.Join(c.ProviderLayer.Close(), c.after.Close()) }

// requestAttrs name the request that ctx belongs to as its answer does.
func requestAttrs(ctx context.Context) []slog.Attr {
	id := api.RequestID(ctx)
	if id == "" {
		return nil
	}
	return []slog.Attr{slog.String("request", id)}
}

// A verifier knows whose a token is.
type verifier = func(ctx context.Context, token string) (auth.Account, error)

// serveOn serves until ctx ends, which is how it is meant to end, or until a
// listener fails.
func (a *app) serveOn(ctx context.Context, stack atoll.Provider, ls *listeners, door *sshd.Server, verify verifier, opts api.Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var errs [3]error
	serve := func(err *error, opts api.Options, listeners []net.Listener) {
		defer cancel() // of the other one, too
		handler, failed := api.NewHandler(stack, opts)
		if failed == nil {
			failed = api.Serve(ctx, handler, listeners...)
		}
		*err = failed
	}
	for _, l := range slices.Concat(ls.own, ls.public) {
		a.say("listening on %s", shownAddr(l.Addr()))
	}
	all.Go(func() { serve(&errs[0], opts, ls.own) })
	if len(ls.public) > 0 {
		guarded := opts
		guarded.Tokens, guarded.Verify = ls.tokens, verify
		all.Go(func() { serve(&errs[1], guarded, ls.public) })
	}
	if door != nil {
		a.say("listening on ssh://%s, with the host key %s", ls.ssh.Addr(), door.HostKey())
		all.Go(func() {
			defer cancel()
			errs[2] = door.Serve(ctx, ls.ssh)
		})
	}
	<-ctx.Done()
	a.say("shutting down")
	all.Wait()
	return errors.Join(errs[:]...)
}

// listeners are where a server can be reached: on sockets by its own user
// alone, on TCP by those who bring the token.
type listeners struct {
	own    []net.Listener
	public []net.Listener
	ssh    net.Listener            // nil unless it is asked for
	tokens map[string]auth.Account // for public
}

func (ls *listeners) close() {
	for _, l := range slices.Concat(ls.own, ls.public) {
		l.Close()
	}
	if ls.ssh != nil {
		ls.ssh.Close()
	}
}

// listen opens the socket of the state directory and what cfg names besides.
func (a *app) listen(ctx context.Context, cfg *config.Config) (*listeners, error) {
	ls := &listeners{}
	err := a.listenAll(ctx, cfg, ls)
	if err != nil {
		ls.close()
		return nil, err
	}
	return ls, nil
}

func (a *app) listenAll(ctx context.Context, cfg *config.Config, ls *listeners) (err error) {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return unusable(cfg, err)
	}
	for _, addr := range append([]string{"unix://" + cfg.Socket()}, cfg.Listen...) {
		own := strings.HasPrefix(addr, "unix://")
		if !own {
			addr = "tcp://" + addr
		}
		l, err := api.Listen(ctx, addr)
		switch {
		case err != nil:
			return err
		case own:
			ls.own = append(ls.own, l)
		default:
			ls.public = append(ls.public, l)
		}
	}
	if len(ls.public) > 0 {
		if ls.tokens, err = a.serverTokens(cfg); err != nil {
			return err
		}
	}
	if cfg.SSH.Listen != "" {
		ls.ssh, err = api.Listen(ctx, "tcp://"+cfg.SSH.Listen)
	}
	return err
}

// openSSH makes the server for those who come by SSH, nil when it is not asked
// for.
func (a *app) openSSH(cfg *config.Config, stack atoll.Provider, log *slog.Logger, ls *listeners) (*sshd.Server, error) {
	if ls.ssh == nil {
		return nil, nil
	}
	return sshd.New(stack, sshd.Options{
		AuthorizedKeys: cfg.SSH.AuthorizedKeys, HostKey: cfg.SSHHostKey(), Project: cfg.Project,
		Spool: cfg.StateDir, MaxUpload: max(int64(cfg.MaxUpload), 0), Log: log,
	})
}

// serverTokens are the tokens that those who come by TCP may bring: the
// server's own, and those of the accounts that are set.
func (a *app) serverTokens(cfg *config.Config) (map[string]auth.Account, error) {
	own, err := a.serverToken(cfg)
	if err != nil {
		return nil, err
	}
	tokens := map[string]auth.Account{own: {}}
	accounts, err := cfg.Tokens()
	if err != nil {
		return nil, err
	}
	for token, account := range accounts {
		if token == own {
			return nil, usagef("accounts: %s has the server's own token", account.Name)
		}
		tokens[token] = account.Account
	}
	return tokens, nil
}

// serverToken is the server's own token: the one that is set, else the one in
// the state directory, else a new one, which is shown.
func (a *app) serverToken(cfg *config.Config) (string, error) {
	if !cfg.Token.IsZero() {
		return cfg.Token.Reveal()
	}
	path := filepath.Join(cfg.StateDir, "token")
	token, made, err := api.LoadToken(path)
	switch {
	case err != nil:
		return "", err
	case made:
		a.say("the token, kept in %s and shown this once: %s", path, token)
	default:
		a.say("the token is in %s", path)
	}
	return token, nil
}

func shownAddr(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	return "http://" + addr.String()
}

func destroyAll(ctx context.Context, p atoll.Provider) error {
	all, err := p.List(ctx, atoll.Filter{})
	if err != nil {
		return err
	}
	var errs []error
	for _, st := range all {
		sb, err := p.Get(ctx, st.ID)
		if err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		if err != nil && !errors.Is(err, atoll.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
