//go:build !client

package main

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/internal/pagecache"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/server/openapi"
	"github.com/seed46cd37a8/atoll/server/origin"
	"github.com/seed46cd37a8/atoll/server/sshd"
)

func newServe(a *app) *cobra.Command {
	var listen, public, origins []string
	var destroy bool
	var sshListen, sshKeys string
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve sandboxes to others over HTTP",
		Long: `Serve answers the HTTP API on a socket in the state directory, which only the same
user can use and which all other commands find, and on the addresses of --listen.
TCP clients need a bearer token: that of the setting token, or else one that is
created at the first start and stored in the state directory; one of accounts; or an
API key, see atoll key.

With --ssh-listen it also serves SSH, for the keys in the file of
--ssh-authorized-keys: ssh NAME@host is a shell in the sandbox NAME of the server's
project, ssh PROJECT.NAME@host one of another project; scp, sftp and ssh -L work
too.

Agents find their tools at /mcp, over the Model Context Protocol, and at /v1/tools:
those of atoll mcp. The headers Atoll-Workflow, Atoll-Agent-Run and Atoll-Session
select the session of a request; without them each MCP session has a sandbox of its
own.

Browsers: pages of the server's own address (--public-url) may open WebSockets and use
/mcp; pages of other origins may not, unless --origins lists them: then they may use the
whole API with a token (CORS). The tool sandbox_port gives links that open one port of one
sandbox without a token, for 24 hours (ports.link_ttl). With ports.domain each port has a
host of its own, for programs that do not work below a path.

Conversations with agents are below /v1/conversation and /v1/sandbox: the answer to
a prompt is a stream of server-sent events of an agent in a sandbox of its own.
Templates (template.dir) select the agent, and sync.store the place of its files.

/metrics is for Prometheus. With OTEL_EXPORTER_OTLP_ENDPOINT set, a span for each
call is sent there, as part of the caller's trace.

At its start, and every 10 minutes (reconcile.every), it reconciles sandboxes as
atoll reconcile does, and then removes old images (image.prune).

/health reports whether the server answers, and /readyz whether requests should be
sent to it.

SIGINT and SIGTERM end the server: it is no longer ready, refuses new requests,
sends clients of streams to other servers of the same store, and lets calls end for
a few seconds; a second signal ends it at once. Sandboxes survive, if the provider
supports that, unless --destroy-on-exit is given, which servers that share a store
(store.url) refuse.`,
		Example: `  atoll serve
  atoll serve --listen 127.0.0.1:7070
  atoll serve --listen 127.0.0.1:7070 --public-url https://atoll.example.com \
    --origins https://app.example.com
  atoll serve --ssh-listen 127.0.0.1:2222 --ssh-authorized-keys ~/.ssh/authorized_keys`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for key, values := range map[string][]string{"listen": listen, "public_url": public, "origins": origins} {
				if len(values) > 0 {
					a.flags[key] = strings.Join(values, ",")
				}
			}
			if a.flags["context"] != "" {
				return usageErrorf("--context is for clients: serve always serves this machine")
			}
			a.flags["context"] = config.DefaultContext
			for key, value := range map[string]string{"ssh.listen": sshListen, "ssh.authorized_keys": sshKeys} {
				if value != "" {
					a.flags[key] = value
				}
			}
			return a.runServer(cmd.Context(), destroy)
		},
	}
	cmd.Flags().StringArrayVar(&listen, "listen", nil, "additional `address` to listen on: unix:///path or host:port")
	cmd.Flags().StringArrayVar(&public, "public-url", nil, "`address` at which browsers reach the server, through a proxy for example: https://atoll.example.com")
	cmd.Flags().StringArrayVar(&origins, "origins", nil, "`origin` of other web pages that may use the server with a token: https://app.example.com")
	cmd.Flags().StringVar(&sshListen, "ssh-listen", "", "`address` to listen on for SSH, host:port")
	cmd.Flags().StringVar(&sshKeys, "ssh-authorized-keys", "", "`file` of the public keys that may log in by SSH")
	cmd.Flags().BoolVar(&destroy, "destroy-on-exit", false, "remove all sandboxes with their data volumes at the end")
	return cmd
}

func (a *app) runServer(ctx context.Context, destroy bool) error {
	b, err := a.loadBuilder()
	if err != nil {
		return err
	}
	cfg := b.Config
	if destroy && cfg.Store.URL != "" {
		return usageErrorf("--destroy-on-exit: would remove the sandboxes of all servers that share the store (store.url): leave it out, and use atoll rm")
	}
	ctx, stop := interruptContext(ctx)
	defer stop()
	log := a.newLogger(cfg, slog.LevelInfo)
	ls, err := a.openListeners(ctx, cfg)
	if err != nil {
		return err
	}
	defer ls.closeListeners()
	go loadClient()
	metrics, err := trace.NewMetrics()
	if err != nil {
		return err
	}
	defer metrics.Close()
	traces := trace.NewTraces(ctx, trace.TracesOptions{Version: buildVersion().Version, Log: log})
	defer traces.Close()
	stackOpts := stack.Options{Log: log, Calls: log, Attrs: requestAttrs, Metrics: metrics, Traces: traces, Server: true}
	if stackOpts.Audit, err = b.OpenAudit(ctx, stackOpts); err != nil {
		return stateDirError(cfg, err)
	}
	audit := stackOpts.Audit
	p, err := b.Open(stackOpts)
	if err != nil {
		return errors.Join(stateDirError(cfg, err), audit.Close())
	}
	p = closingAfter{atoll.ProviderLayer{Provider: p}, audit}
	door, err := a.openSSH(cfg, p, log, ls)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	keys, err := b.Keys(log, audit)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	web, err := newBrowserAccess(b, keys)
	if err != nil {
		return errors.Join(err, keys.Close(), p.Close())
	}
	tools, err := a.openTools(b, p, ls, web, log)
	if err != nil {
		return errors.Join(err, keys.Close(), p.Close())
	}
	talks, endTalks, err := b.Conversations(ctx, p, stack.Options{Log: log, Metrics: metrics})
	if err != nil {
		if ctx.Err() != nil { // the server should end before it has started, which is no error
			err = nil
		}
		return errors.Join(err, tools.closeTools(), keys.Close(), p.Close())
	}
	settled := a.keepReconciled(ctx, p, cfg, log)
	opts := api.Options{
		Log: log, Metrics: metrics, MaxUpload: max(int64(cfg.MaxUpload), 0), Extract: trace.Extract, Docs: openapi.Handler(buildVersion().Version), Version: buildVersion().Version,
		Origins: web.origins, Links: web.links,
	}
	opts.Ready = func(ctx context.Context) error { return stack.Ready(ctx, b, p) }
	tools.addToAPI(&opts)
	opts.Conversations, opts.Keys, opts.Audit, opts.Denied = talks, keys, audit, audit.Refused
	err = errors.Join(a.serveOn(ctx, p, ls, door, keys.Verify, opts), endTalks(), tools.closeTools(), keys.Close())
	settled()
	if destroy {
		err = errors.Join(err, destroyAll(context.WithoutCancel(ctx), p))
	}
	return errors.Join(err, p.Close())
}

// loadClient makes the commands that use this server start faster: they run the client that has started it.
func loadClient() {
	if startedBy != "" {
		_ = pagecache.Reload(startedBy)
	}
}

// A browserAccess has what browsers may do at a server.
type browserAccess struct {
	origins *origin.Policy
	links   *api.PortLinks
}

// newBrowserAccess returns what the configuration says about browsers.
func newBrowserAccess(b *stack.Builder, keys *authz.Ring) (browserAccess, error) {
	origins, err := b.OriginPolicy()
	links := b.LinkOptions()
	links.KeyAccount = keys.Account
	return browserAccess{origins, api.NewPortLinks(links)}, err
}

// A closingAfter is a provider whose Close also closes after.
type closingAfter struct {
	atoll.ProviderLayer
	after io.Closer
}

// Close implements atoll.Provider.
func (c closingAfter) Close() error { return errors.Join(c.ProviderLayer.Close(), c.after.Close()) }

// requestAttrs returns the id of the request of ctx, which its answer has, too.
func requestAttrs(ctx context.Context) []slog.Attr {
	id := api.RequestID(ctx)
	if id == "" {
		return nil
	}
	return []slog.Attr{slog.String("request", id)}
}

// A verifier returns the account of a token.
type verifier = func(ctx context.Context, token string) (auth.Account, error)

// serveOn serves until ctx ends, in which case it returns nil, or until a listener fails.
func (a *app) serveOn(ctx context.Context, stack atoll.Provider, ls *listeners, door *sshd.Server, verify verifier, opts api.Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var errs [3]error
	serve := func(err *error, opts api.Options, listeners []net.Listener) {
		defer cancel() // also end the other servers
		handler, failed := api.NewHandler(stack, opts)
		if failed == nil {
			failed = api.Serve(ctx, handler, listeners...)
		}
		*err = failed
	}
	for _, l := range slices.Concat(ls.own, ls.public) {
		a.printMessage("listening on %s", shownAddr(l.Addr()))
	}
	a.adviseClients(ls)
	all.Go(func() { serve(&errs[0], opts, ls.own) })
	if len(ls.public) > 0 {
		guarded := opts
		guarded.Tokens, guarded.Verify = ls.tokens, verify
		all.Go(func() { serve(&errs[1], guarded, ls.public) })
	}
	if door != nil {
		a.printMessage("listening on ssh://%s, with the host key %s", ls.ssh.Addr(), door.HostKey())
		all.Go(func() {
			defer cancel()
			errs[2] = door.Serve(ctx, ls.ssh)
		})
	}
	<-ctx.Done()
	a.printMessage("shutting down")
	all.Wait()
	return errors.Join(errs[:]...)
}

// adviseClients says how programs and people use the server over TCP.
func (a *app) adviseClients(ls *listeners) {
	if len(ls.public) == 0 {
		return
	}
	address, reachable := connectAddress(ls.public[0].Addr())
	for _, l := range ls.public[1:] {
		if other, ok := connectAddress(l.Addr()); ok && !reachable {
			address, reachable = other, true
		}
	}
	if len(ls.publicURL) > 0 {
		address, reachable = ls.publicURL[0], true
	}
	where := "on this machine"
	if reachable {
		where = "on any machine"
	}
	a.printMessage("documentation of the API: %s/docs", address)
	a.printMessage("to use this server %s: atoll login %s", where, address)
}

// connectAddress returns the URL at which clients of other machines reach a listener, with the name of this machine
// if the listener has all its addresses. ok is false if only this machine reaches it.
func connectAddress(addr net.Addr) (address string, ok bool) {
	tcp, isTCP := addr.(*net.TCPAddr)
	if !isTCP {
		return "", false
	}
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return "http://" + net.JoinHostPort(host, fmt.Sprint(tcp.Port)), !tcp.IP.IsLoopback()
}

// listeners are the listeners of a server: sockets for its own user, and TCP for clients with a token.
type listeners struct {
	own       []net.Listener
	public    []net.Listener
	ssh       net.Listener            // nil unless configured
	publicURL []string                // addresses for clients of other machines, if they are configured
	tokens    map[string]auth.Account // accepted tokens of public
}

func (ls *listeners) closeListeners() {
	for _, l := range slices.Concat(ls.own, ls.public) {
		l.Close()
	}
	if ls.ssh != nil {
		ls.ssh.Close()
	}
}

// openListeners listens on the socket of the state directory and on the configured addresses.
func (a *app) openListeners(ctx context.Context, cfg *config.Config) (*listeners, error) {
	ls := &listeners{}
	err := a.listenAll(ctx, cfg, ls)
	if err != nil {
		ls.closeListeners()
		return nil, err
	}
	return ls, nil
}

func (a *app) listenAll(ctx context.Context, cfg *config.Config, ls *listeners) (err error) {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return stateDirError(cfg, err)
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
	ls.publicURL = cfg.PublicURL
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

// openSSH returns the SSH server, or nil if none is configured.
func (a *app) openSSH(cfg *config.Config, p atoll.Provider, log *slog.Logger, ls *listeners) (*sshd.Server, error) {
	if ls.ssh == nil {
		return nil, nil
	}
	return sshd.New(p, sshd.Options{
		AuthorizedKeys: cfg.SSH.AuthorizedKeys, HostKey: cfg.SSHHostKey(), Project: cfg.Project,
		MaxUpload: max(int64(cfg.MaxUpload), 0), Log: log,
	})
}

// serverTokens returns the tokens of TCP clients: the server's own, and those of the configured accounts.
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
			return nil, usageErrorf("accounts: %s has the server's own token", account.Name)
		}
		tokens[token] = account.Account
	}
	return tokens, nil
}

// serverToken returns the server's own token: the configured one, otherwise the one in the state directory, otherwise
// a new one, which it prints on a terminal.
func (a *app) serverToken(cfg *config.Config) (string, error) {
	if !cfg.Token.IsZero() {
		return cfg.Token.Reveal()
	}
	path := filepath.Join(cfg.StateDir, "token")
	token, made, err := api.LoadToken(path)
	switch {
	case err != nil:
		return "", err
	case made && isTerminal(a.stderr): // a journal would keep it
		a.printMessage("the token, stored in %s and shown only once: %s", path, token)
	default:
		a.printMessage("the token is in %s", path)
	}
	return token, nil
}

func shownAddr(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	return "http://" + addr.String()
}

// destroyAll removes all sandboxes with their data volumes.
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
