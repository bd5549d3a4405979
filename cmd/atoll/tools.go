//go:build !client

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

// codePrefix is the prefix of our variables that agents' sandboxes get, without the prefix.
const codePrefix = "ATOLL_CODE_"

// codeEnv returns the variables with codePrefix, without the prefix.
func codeEnv(ours []string) []string {
	var env []string
	for _, kv := range ours {
		if rest, ok := strings.CutPrefix(kv, codePrefix); ok && rest != "" && rest[0] != '=' {
			env = append(env, rest)
		}
	}
	slices.Sort(env)
	return env
}

// kitOptions has the inputs of newKit besides the configuration.
type kitOptions struct {
	provider atoll.Provider
	maker    string     // provider of new sandboxes
	sandbox  atoll.Spec // template of the sandboxes' specs; its Image is the default image
	agent    *frontmatter.Sandbox
	url      func(ctx context.Context, sb atoll.Sandbox, port int) (string, error)
	log      *slog.Logger

	idleTimeout, maxLifetime atoll.Duration // of sessions; 0 for the configured ones
	outputLimit              int            // of a call; 0 for the configured one
}

// newKit returns the tools of agents.
func (a *app) newKit(cfg *stack.Builder, b kitOptions) (*tools.Kit, error) {
	opts, err := cfg.ToolOptions(b.maker)
	if err != nil {
		return nil, err
	}
	opts.Sandbox, opts.Agent, opts.URL, opts.Log = b.sandbox, b.agent, b.url, b.log
	opts.IdleTimeout, opts.MaxLifetime = b.idleTimeout, b.maxLifetime
	opts.OutputLimit = cmp.Or(b.outputLimit, opts.OutputLimit)
	opts.Sandbox.Env = slices.Concat(codeEnv(a.env), b.sandbox.Env)
	if image := b.sandbox.Image; image != "" {
		opts.Images.Shortcuts[""], opts.Sandbox.Image = image, ""
		// A local image is for sandboxes only, not for other backends.
		opts.OwnPrograms = opts.Compute == nil || !frontmatter.OfMachine(image)
		if agent := b.agent; agent != nil && (opts.OwnPrograms || agent.Mode != frontmatter.ModeCompute) { // the flag wins over the agent's file
			with := *agent
			with.Runtime, opts.Agent = with.Program(), &with
		}
	}
	return tools.New(b.provider, opts)
}

// serverTools are the tools of a server for agents.
type serverTools struct {
	kit *tools.Kit
	mcp *mcp.Server
}

// openTools returns the tools, or nil if they are disabled.
func (a *app) openTools(cfg *stack.Builder, p atoll.Provider, ls *listeners, web browserAccess, log *slog.Logger) (*serverTools, error) {
	if !cfg.Tools.Enabled {
		return nil, nil
	}
	maker := cmp.Or(cfg.ProviderOf(cfg.Project), p.Info().Name)
	kit, err := a.newKit(cfg, kitOptions{provider: p, maker: maker, sandbox: atoll.Spec{Provider: cfg.ProviderOf(cfg.Project)}, url: ls.portURL(web.links), log: log})
	if err != nil {
		return nil, err
	}
	server, err := mcp.NewServer(kit, mcp.Options{Version: buildVersion().Version, IdleTimeout: max(time.Duration(cfg.Session.IdleTimeout), 0), AnyHost: true, Origins: web.origins, Log: log}) // TCP clients need a token
	if err != nil {
		return nil, errors.Join(err, kit.Close())
	}
	return &serverTools{kit, server}, nil
}

// addToAPI adds the tools to the options of the API.
func (t *serverTools) addToAPI(opts *api.Options) {
	if t != nil {
		opts.MCP, opts.Tools = t.mcp, kitTools{t.kit}
	}
}

// closeTools ends the sandboxes of MCP sessions.
func (t *serverTools) closeTools() error {
	if t == nil {
		return nil
	}
	return errors.Join(t.mcp.Close(), t.kit.Close())
}

// kitTools implements api.Tools for a kit.
type kitTools struct{ *tools.Kit }

// Tools implements api.Tools.
func (k kitTools) Tools() []api.ToolInfo {
	var all []api.ToolInfo
	for _, t := range k.Kit.Tools() {
		all = append(all, api.ToolInfo{
			Name: t.Name, Title: t.Title, Description: t.Description, Input: schemaJSON(t.Input), Output: schemaJSON(t.Output),
			ReadOnly: t.ReadOnly, Destructive: t.Destructive, Idempotent: t.Idempotent,
		})
	}
	return all
}

func schemaJSON(schema any) json.RawMessage {
	data, err := json.Marshal(schema)
	if err != nil {
		panic(err) // of our own types
	}
	return data
}

// CallTool implements api.Tools.
func (k kitTools) CallTool(ctx context.Context, c api.ToolCall) (json.RawMessage, error) {
	return k.Call(ctx, tools.Caller{ExecutionContext: c.ExecutionContext, Scope: c.Scope}, c.Name, c.Input, nil)
}

// portURL returns a function that signs links to ports.
func (ls *listeners) portURL(links *api.PortLinks) func(ctx context.Context, sb atoll.Sandbox, port int) (string, error) {
	return func(ctx context.Context, sb atoll.Sandbox, port int) (string, error) {
		base := api.BaseURL(ctx)
		if base == "" && len(ls.public) > 0 {
			addr := ls.public[0].Addr().(*net.TCPAddr)
			if host := addr.IP; host.IsUnspecified() { // a client on a socket is on this machine
				addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: addr.Port}
			}
			base = "http://" + addr.String()
		}
		if base == "" {
			return "", atoll.Errorf("", "", atoll.ErrUnsupported, "the server has no address for browsers: ask the user to run atoll port-forward %s %d", shortID(sb.ID()), port)
		}
		return links.URL(ctx, base, sb, port)
	}
}
