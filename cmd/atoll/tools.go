package main

import (
	"context"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/frontmatter"
	"github.com/seed46cd37a8/atoll/tool"
)

// codePrefix begins the variables of ours that sandboxes of agents are to have,
// without it.
const codePrefix = "ATOLL_CODE_"

// codeEnv are those variables.
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

// A toolbench is what tools are made of, besides the configuration.
type toolbench struct {
	provider atoll.Provider
	maker    string     // the provider of new sandboxes
	sandbox  atoll.Spec // what sandboxes are made from; its Image is that of those who name none
	agent    *frontmatter.Sandbox
	url      func(ctx context.Context, sb atoll.Sandbox, port int) (string, error)
}

// newKit makes the tools of agents.
func (a *app) newKit(cfg *config.Config, b toolbench) (*tool.Kit, error) {
	opts, err := cfg.ToolOptions(b.maker)
	if err != nil {
		return nil, err
	}
	opts.Sandbox, opts.Agent, opts.URL, opts.Log = b.sandbox, b.agent, b.url, a.notes(cfg)
	opts.Sandbox.Env = slices.Concat(codeEnv(a.env), b.sandbox.Env)
	if image := b.sandbox.Image; image != "" {
		opts.Images.Shortcuts[""], opts.Sandbox.Image = image, ""
		if b.agent != nil { // who starts us knows better than the file
			agent := *b.agent
			agent.Runtime, opts.Agent = "", &agent
		}
	}
	return tool.New(b.provider, opts)
}
