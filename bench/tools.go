//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
)

// The rows of tools, and their goals.
const (
	toolAlone  = "sandbox_exec, MCP on stdio, atoll alone"
	toolServer = "sandbox_exec, MCP on stdio, server running"
	toolRun    = "sandbox_run, MCP on stdio"
	plainRun   = "atoll run"
)

var (
	toolGoals    = []goal{{row: toolAlone, millis: 8}, {row: toolServer, millis: 8}}
	toolRunGoals = []goal{{row: toolRun, than: plainRun, most: 1.5}}
)

// measureTools measures the tools of agents: a command in an existing sandbox, and a program in a new
// one.
func (b *bench) measureTools(ctx context.Context) (err error) {
	server, err := startServer(ctx, b, "tools")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stopServer()) }()
	state := filepath.Join(b.dir, "agent")
	alone, err := b.startTools(ctx, state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.Close()) }()
	served, err := b.startTools(ctx, server.state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, served.Close()) }()
	live, err := server.Create(ctx, &atoll.Spec{Image: "dir:" + b.root})
	if err != nil {
		return err
	}
	command := map[string]any{"command": "echo x"}
	err = b.compareMethods(ctx, "Agents: a command in their sandbox", toolGoals, []method{
		{viaAPI, timeCall(func(ctx context.Context) error {
			_, err := atoll.Output(ctx, live, &atoll.Command{Args: []string{"sh", "-c", "echo x"}})
			return err
		})},
		{toolAlone, timeCall(func(ctx context.Context) error { return callTool(ctx, alone, "sandbox_exec", command) })},
		{toolServer, timeCall(func(ctx context.Context) error { return callTool(ctx, served, "sandbox_exec", command) })},
	})
	if err != nil {
		return err
	}
	program := map[string]any{"runtime": "bash", "code": "echo x"}
	return b.compareMethods(ctx, "Agents: a program in a fresh sandbox", toolRunGoals, []method{
		{plainRun, func(ctx context.Context) (time.Duration, error) {
			return untilEnd(b.atollCommand(ctx, state, "run", "--image", "dir:"+b.root, "--", "sh", "-c", "echo x"))
		}},
		{toolRun, timeCall(func(ctx context.Context) error { return callTool(ctx, alone, "sandbox_run", program) })},
	})
}

// startTools starts "atoll mcp" with a state directory.
func (b *bench) startTools(ctx context.Context, state string) (*mcp.ClientSession, error) {
	image := "dir:" + b.root
	cmd := b.atollCommand(context.WithoutCancel(ctx), state, "mcp", "--image", image)
	cmd.Env = append(cmd.Env, "ATOLL_TOOLS_IMAGES=linux="+image)
	return mcp.NewClient(&mcp.Implementation{Name: "bench"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: waitLimit}, nil)
}

// callTool calls a tool that runs "echo x", and checks its output.
func callTool(ctx context.Context, c *mcp.ClientSession, name string, input map[string]any) error {
	r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: input})
	if err != nil {
		return err
	}
	out, _ := r.StructuredContent.(map[string]any)
	if r.IsError || out["stdout"] != "x\n" || out["exit_code"] != 0.0 {
		return fmt.Errorf("%s: %s", name, r.Content[0].(*mcp.TextContent).Text)
	}
	return nil
}
