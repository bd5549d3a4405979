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
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// dialTimeout is the time that a server may take for its first answer.
const dialTimeout = 10 * time.Second

// retryTimeout is the time for which the client repeats requests if a server disappears, at that server or another
// one. It exceeds the time after which another server takes over its work.
const retryTimeout = 45 * time.Second

// A connection is the provider that a command uses: the client of a running server, or of one in this process that
// ends with the command. Both behave the same, except for the life of sandboxes.
type connection struct {
	atoll.Provider
	client   *client.Client // the same client, for calls that are not part of atoll.Provider
	project  string         // see requestProject
	maker    string         // provider that new sandboxes name; "" for the default one
	survives bool           // sandboxes survive the end of this process
	close    func() error   // closes the server in this process; nil for other servers
	named    references     // the sandboxes that findSandbox has found
}

// Close closes the connection, and the server if it is in this process.
func (c *connection) Close() error {
	err := c.Provider.Close()
	if c.close != nil {
		err = errors.Join(err, c.close())
	}
	return err
}

// openConnection connects to the configured server, otherwise to the one of the state directory, otherwise to a new
// one in this process.
func (a *app) openConnection(ctx context.Context) (*connection, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, err
	}
	c, err := a.connectTo(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.project, c.maker = requestProject(cfg), cfg.ProviderOf(cfg.Project)
	return c, nil
}

// requestProject returns the project that requests name: the configured one, or "" for the default of the token at
// another server, whose projects may not include "default".
func requestProject(cfg *config.Config) string {
	if cfg.URL != "" && !cfg.IsSet("project") {
		return ""
	}
	return cfg.Project
}

func (a *app) connectTo(ctx context.Context, cfg *config.Config) (*connection, error) {
	if cfg.URL != "" {
		return a.dialServer(ctx, cfg, cfg.URL)
	}
	client, err := runningServer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return a.serveSelf(ctx, cfg)
	}
	has, err := hasProvider(ctx, client, cfg)
	if has {
		return &connection{Provider: client, client: client, survives: true}, nil
	}
	// The user wants a provider that the server does not have.
	if err := errors.Join(err, client.Close()); err != nil {
		return nil, err
	}
	return a.serveSelf(ctx, cfg)
}

// dialServer connects to the server at url.
func (a *app) dialServer(ctx context.Context, cfg *config.Config, url string) (*connection, error) {
	token, err := cfg.Token.Reveal()
	if err != nil {
		return nil, err
	}
	client, err := newClient(ctx, client.Options{URL: url, Token: token, Patience: retryTimeout, Inject: injectTrace})
	if err != nil {
		return nil, connectError(cfg, url, err)
	}
	has, err := hasProvider(ctx, client, cfg)
	if err == nil && !has {
		err = usageErrorf("the server at %s has no provider %s", url, cfg.Provider)
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &connection{Provider: client, client: client, survives: true}, nil
}

// hasProvider reports whether the server has the configured provider. It is true if none is configured.
func hasProvider(ctx context.Context, client *client.Client, cfg *config.Config) (bool, error) {
	if !cfg.IsSet("provider") || client.Info().Name == cfg.Provider {
		return true, nil
	}
	_, ok, err := findMember(ctx, client, cfg.Provider)
	return ok, err
}

// findMember returns the provider with a name among those of p.
func findMember(ctx context.Context, p atoll.Provider, name string) (m atoll.Member, ok bool, err error) {
	if name == p.Info().Name {
		return atoll.Member{Info: p.Info(), InUse: true}, true, nil // the usual case, without a request
	}
	all, err := atoll.Members(ctx, p)
	for _, m := range all {
		if m.Name == name {
			return m, true, nil
		}
	}
	return m, false, err
}

// newClient is client.New with a timeout.
func newClient(ctx context.Context, opts client.Options) (*client.Client, error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	client, err := client.New(limited, opts)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, atoll.Errorf("connect", "", atoll.ErrUnavailable, "server at %s: no answer within %s", opts.URL, dialTimeout)
	}
	return client, err
}

// connectError adds advice to the error of connecting to the configured server at url.
func connectError(cfg *config.Config, url string, err error) error {
	from := cfg.Origin("url")
	switch kind := atoll.KindOf(err); {
	case kind == atoll.ErrUnavailable:
		return atoll.Errorf("connect", "", kind, "%w (address set by %s)", causeOf(err), from)
	case kind == atoll.ErrDenied && cfg.Token.IsZero():
		return atoll.Errorf("connect", "", kind, "server at %s: a token is needed: set ATOLL_TOKEN, or --token to env:NAME or file:/path", url)
	case kind == atoll.ErrDenied:
		return atoll.Errorf("connect", "", kind, "server at %s: %w (token set by %s)", url, causeOf(err), cfg.Origin("token"))
	}
	return atoll.Errorf("connect", "", atoll.KindOf(err), "server at %s: %w: is it an Atoll server?", url, causeOf(err))
}

// runningServer returns a client of the server on the socket of the state directory, or nil if none runs. A socket
// that a dead server left behind does not count.
func runningServer(ctx context.Context, cfg *config.Config) (*client.Client, error) {
	socket := cfg.Socket()
	if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	client, err := newClient(ctx, client.Options{URL: "unix://" + socket, Inject: injectTrace})
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

// requireSurvival returns an error if sandboxes end with this process.
func (c *connection) requireSurvival() error {
	if c.survives {
		return nil
	}
	return usageErrorf("sandboxes of the provider %s end with this command: start a server first, with atoll serve --provider %[1]s", cmp.Or(c.maker, c.Info().Name))
}

// isPrefix reports whether s can be a prefix of an id.
func isPrefix(s string) bool {
	return len(s) >= 4 && len(s) < 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// findSandbox returns the sandbox with an id, a name, or a unique prefix of an id.
func (c *connection) findSandbox(ctx context.Context, ref string) (atoll.Sandbox, error) {
	sb, err := c.resolveReference(ctx, ref)
	return sb, c.checkFound(ctx, ref, sb, err)
}

// findStatus is findSandbox with the status: one request if ref is a name.
func (c *connection) findStatus(ctx context.Context, ref string) (sb atoll.Sandbox, st atoll.Status, err error) {
	if isName(ref) {
		sb, st, err = c.client.Find(ctx, c.project, ref)
		return sb, st, c.checkFound(ctx, ref, sb, err)
	}
	if sb, err = c.findSandbox(ctx, ref); err == nil {
		st, err = sb.Status(ctx)
	}
	return sb, st, err
}

// checkFound records the reference to a sandbox that was found, and returns err with advice.
func (c *connection) checkFound(ctx context.Context, ref string, sb atoll.Sandbox, err error) error {
	switch {
	case err == nil:
		c.named.addReference(sb.ID(), ref)
	case atoll.KindOf(err) == atoll.ErrNotFound:
		return c.unknownSandbox(ctx, ref)
	}
	return err
}

// isName reports whether ref can only be a name: neither an id nor the beginning of one.
func isName(ref string) bool {
	_, err := atoll.NormalizeID(ref)
	return err != nil && atoll.ValidName(ref) && !isPrefix(strings.ToLower(ref))
}

func (c *connection) resolveReference(ctx context.Context, ref string) (atoll.Sandbox, error) {
	if isName(ref) { // one request, not two
		id, err := c.client.Resolve(ctx, c.project, ref)
		if err != nil {
			return nil, err
		}
		return c.client.Sandbox(id), nil
	}
	sb, err := atoll.Resolve(atoll.WithDefaultProject(ctx, c.project), c.Provider, "", ref)
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
	return nil, atoll.E("get", ref, atoll.ErrInvalid, fmt.Errorf("more than one id has this prefix: %s", strings.Join(ids, ", ")))
}
