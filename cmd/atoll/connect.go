package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/layer/trace"
	"github.com/seed46cd37a8/atoll/server/api"
)

// dialTimeout is how long a server may take to answer at all.
const dialTimeout = 10 * time.Second

// serverPatience is how long what a server was asked is asked again, here or of another
// one, that has gone: long enough for what it was doing to be another one's.
const serverPatience = 45 * time.Second

// A connection is the provider that a command uses: the client of a server
// that runs, or of one that lives inside this process for as long as the
// command. The command cannot tell, but for what becomes of its sandboxes.
type connection struct {
	atoll.Provider
	client  *api.Client // the same, for what is the server's and no provider's
	project string
	maker   string       // the provider that new sandboxes name; "" for the default one
	lives   bool         // they live on when this process ends
	close   func() error // nil where the server is not our own
}

// Close ends the connection, and the server where it is our own.
func (c *connection) Close() error {
	err := c.Provider.Close()
	if c.close != nil {
		err = errors.Join(err, c.close())
	}
	return err
}

// connect finds the server that the configuration names, else the one that
// runs for the state directory, else becomes one.
func (a *app) connect(ctx context.Context) (*connection, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	c, err := a.connectTo(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.project, c.maker = cfg.Project, cfg.ProviderOf(cfg.Project)
	return c, nil
}

func (a *app) connectTo(ctx context.Context, cfg *config.Config) (*connection, error) {
	if cfg.URL != "" {
		return a.dial(ctx, cfg, cfg.URL)
	}
	client, err := running(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return a.serveSelf(ctx, cfg)
	}
	has, err := hasProvider(ctx, client, cfg)
	if has {
		return &connection{Provider: client, client: client, lives: true}, nil
	}
	// Another provider was asked for than those that the server has.
	if err := errors.Join(err, client.Close()); err != nil {
		return nil, err
	}
	return a.serveSelf(ctx, cfg)
}

func (a *app) dial(ctx context.Context, cfg *config.Config, url string) (*connection, error) {
	token, err := cfg.Token.Reveal()
	if err != nil {
		return nil, err
	}
	client, err := newClient(ctx, api.ClientOptions{URL: url, Token: token, Patience: serverPatience, Inject: trace.Inject})
	if err != nil {
		return nil, refused(cfg, url, err)
	}
	has, err := hasProvider(ctx, client, cfg)
	if err == nil && !has {
		err = usagef("the server at %s has no provider %s", url, cfg.Provider)
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &connection{Provider: client, client: client, lives: true}, nil
}

// hasProvider reports whether the server has the provider that is set, if one is.
func hasProvider(ctx context.Context, client *api.Client, cfg *config.Config) (bool, error) {
	if !cfg.IsSet("provider") || client.Info().Name == cfg.Provider {
		return true, nil
	}
	_, ok, err := member(ctx, client, cfg.Provider)
	return ok, err
}

// member finds the one of several providers that has the name.
func member(ctx context.Context, p atoll.Provider, name string) (m atoll.Member, ok bool, err error) {
	if name == p.Info().Name {
		return atoll.Member{Info: p.Info(), InUse: true}, true, nil // as it mostly is, and nobody has to be asked
	}
	all, err := atoll.Members(ctx, p)
	for _, m := range all {
		if m.Name == name {
			return m, true, nil
		}
	}
	return m, false, err
}

// newClient is api.NewClient with a limit to its time.
func newClient(ctx context.Context, opts api.ClientOptions) (*api.Client, error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	client, err := api.NewClient(limited, opts)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, atoll.Errorf("connect", "", atoll.ErrUnavailable, "server at %s: no answer within %s", opts.URL, dialTimeout)
	}
	return client, err
}

// refused says what to do when the server at url, which the user has named, is
// not there or does not want us.
func refused(cfg *config.Config, url string, err error) error {
	from := cfg.Origin("url")
	switch kind := atoll.KindOf(err); {
	case kind == atoll.ErrUnavailable:
		return atoll.Errorf("connect", "", kind, "%w (the address is that of %s)", causeOf(err), from)
	case kind == atoll.ErrDenied && cfg.Token.IsZero():
		return atoll.Errorf("connect", "", kind, "server at %s: a token is needed: set ATOLL_TOKEN, or --token to env:NAME or file:/path", url)
	case kind == atoll.ErrDenied:
		return atoll.Errorf("connect", "", kind, "server at %s: %w (it is that of %s)", url, causeOf(err), cfg.Origin("token"))
	}
	return atoll.Errorf("connect", "", atoll.KindOf(err), "server at %s: %w: is it one of Atoll?", url, causeOf(err))
}

// running returns a client of the server that answers on the socket of the
// state directory, nil when there is none. A socket that was left behind by a
// server that died counts as none.
func running(ctx context.Context, cfg *config.Config) (*api.Client, error) {
	socket := cfg.Socket()
	if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	client, err := newClient(ctx, api.ClientOptions{URL: "unix://" + socket, Inject: trace.Inject})
	switch {
	case err == nil:
		return client, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTSOCK):
		return nil, nil
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return nil, atoll.Errorf("", "", atoll.ErrDenied,
			"the server's socket %s belongs to another user: run as that user, or set state_dir or url", socket)
	}
	return nil, err
}

// serveSelf builds the stack and talks to it as to any server.
func (a *app) serveSelf(ctx context.Context, cfg *config.Config) (*connection, error) {
	opts := config.Options{Log: a.notes(cfg), Traces: a.traces, Server: a.long}
	if cfg.IsSet("log.level") {
		opts.Calls = opts.Log // else the command reports what fails, and nobody asked for more
	}
	stack, err := config.Open(cfg, opts)
	if err != nil {
		return nil, unusable(cfg, err)
	}
	audit, err := cfg.OpenAudit(ctx, config.Options{Log: opts.Log})
	if err != nil {
		return nil, errors.Join(err, stack.Close())
	}
	keys, err := cfg.Keys(opts.Log, audit)
	if err != nil {
		return nil, errors.Join(err, audit.Close(), stack.Close())
	}
	handler, err := api.NewHandler(stack, api.Options{Extract: trace.Extract, Keys: keys, Audit: audit})
	if err != nil {
		return nil, errors.Join(err, keys.Close(), audit.Close(), stack.Close())
	}
	pipe := api.NewPipe()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- api.Serve(serving, handler, pipe) }()
	end := func() error {
		stop()
		return errors.Join(<-served, keys.Close(), audit.Close(), stack.Close())
	}
	info := stack.Info()
	maker, _, err := member(ctx, stack, cmp.Or(cfg.ProviderOf(cfg.Project), info.Name))
	if err != nil {
		return nil, errors.Join(err, end())
	}
	client, err := api.NewClient(ctx, api.ClientOptions{Dial: pipe.Dial, Info: &info, Inject: trace.Inject})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	lives := maker.Caps.Survives || maker.Problem != "" // Create will say what that is
	return &connection{Provider: client, client: client, lives: lives, close: end}, nil
}

// unusable prefers, to an error of opening what cfg describes, that the state
// directory is of no use.
func unusable(cfg *config.Config, err error) error {
	if probe := probeDir(cfg.StateDir); !probe.OK {
		return atoll.Errorf("", "", atoll.KindOf(err), "state_dir %s cannot be used: %s: %s", cfg.StateDir, probe.Reason, probe.Fix)
	}
	return err
}

// mustLive refuses to make a sandbox that would be gone at once.
func (c *connection) mustLive() error {
	if c.lives {
		return nil
	}
	return usagef("sandboxes of the provider %s end with this command: start a server first, with atoll serve --provider %[1]s", cmp.Or(c.maker, c.Info().Name))
}

// isPrefix reports whether s can be the beginning of an id.
func isPrefix(s string) bool {
	return len(s) >= 4 && len(s) < 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// find resolves the id, name or unique beginning of an id of a sandbox.
func (c *connection) find(ctx context.Context, ref string) (atoll.Sandbox, error) {
	sb, err := atoll.Resolve(ctx, c.Provider, c.project, ref)
	prefix := strings.ToLower(ref)
	if err == nil || atoll.KindOf(err) != atoll.ErrNotFound || !isPrefix(prefix) {
		return sb, err
	}
	all, listErr := c.List(ctx, atoll.Filter{})
	if listErr != nil {
		return nil, listErr
	}
	all = slices.DeleteFunc(all, func(st atoll.Status) bool { return !strings.HasPrefix(st.ID, prefix) })
	switch len(all) {
	case 0:
		return nil, err
	case 1:
		return c.Get(ctx, all[0].ID)
	}
	var ids []string
	for _, st := range all {
		ids = append(ids, st.ID)
	}
	return nil, atoll.E("get", ref, atoll.ErrInvalid, fmt.Errorf("more than one sandbox begins so: %s", strings.Join(ids, ", ")))
}
