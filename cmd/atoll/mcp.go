//go:build !client

package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/mcp"
)

// An mcpCommand has the flags of atoll mcp.
type mcpCommand struct {
	spec      specFlags
	agentFile string
	session   string
	caller    tools.Caller
	agent     *frontmatter.Sandbox

	idleTimeout, maxLifetime atoll.Duration
	outputLimit              int
}

func newMCP(a *app) *cobra.Command {
	var m mcpCommand
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Give a coding agent a sandbox over the Model Context Protocol",
		Long: `Mcp serves tools to the agent that started it, on stdin and stdout: a sandbox to
run commands in, its files to read and change, and its ports. The sandbox is
created at the first use, and removed when the agent ends, unless --workflow,
--agent-run or --session names its session: all callers with that session share the
sandbox until atoll session end. A sandbox that no tool has used for --idle-timeout
is removed, too; the agent then gets a new one without the old files, and a note
about it.

With --agent, the agent's file selects the tools: sandbox_run in mode compute,
those of a lasting sandbox in mode code. Variables named ATOLL_CODE_X are X in the
sandbox. Ports that the agent shows are forwarded from 127.0.0.1 while this program
runs.`,
		Example: `  atoll mcp install claude
  claude mcp add atoll -- atoll mcp
  atoll mcp --workspace . --network on
  atoll mcp --agent agents/code-developer.md --workflow wf_abc123`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := m.readFlags(); err != nil {
				return err
			}
			return a.serveMCP(cmd, &m)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&m.agentFile, "agent", "", "`file` of the agent, whose front matter selects its tools and its sandbox")
	flags.StringVar(&m.caller.WorkflowRunID, "workflow", "", "`id` of the workflow run that shares the sandbox")
	flags.StringVar(&m.caller.AgentRunID, "agent-run", "", "`id` of the agent's run, which shares the sandbox if its file says so or --workflow is not set")
	flags.StringVar(&m.session, "session", "", "`scope` of the session that shares the sandbox, KIND/ID")
	sessionTimes(flags, &m.idleTimeout, &m.maxLifetime)
	flags.IntVar(&m.outputLimit, "output-limit", 0, "`bytes` of output that a call returns, unless the agent asks for more or less (default tools.output_limit, which is 30000)")
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	m.spec.addFlags(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(sessionsOwn, flag.Name) && !slices.Contains(noneOfTools, flag.Name) {
			flags.AddFlag(flag)
		}
	})
	cmd.AddCommand(newMCPInstall(a), newMCPUninstall(a))
	flags.Lookup("image").Usage = "root file system of the sandbox, unless the agent names one: an OCI `image`, or host for this machine's own tools (default host on gvisor and native, the only one on local and mock, else ubuntu:22.04)"
	return cmd
}

// noneOfTools are the flags of a sandbox that do not apply to tools.
var noneOfTools = []string{"name", "snapshot", "quiet"}

// readFlags checks the flags and loads the agent's file.
func (m *mcpCommand) readFlags() (err error) {
	if m.outputLimit < 0 {
		return usageErrorf("--output-limit %d: must be positive", m.outputLimit)
	}
	if m.session != "" {
		if m.caller.WorkflowRunID != "" || m.caller.AgentRunID != "" {
			return usageErrorf("--session cannot be combined with --workflow or --agent-run")
		}
		if m.caller.Scope, err = session.ParseScope(m.session); err != nil {
			return err
		}
	}
	for _, id := range []string{m.caller.WorkflowRunID, m.caller.AgentRunID} {
		if id != "" && !atoll.ValidName(id) {
			return usageErrorf("id %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", id)
		}
	}
	if m.agentFile == "" {
		return nil
	}
	agent, err := frontmatter.Load(m.agentFile)
	if err != nil {
		return err
	}
	if agent.Sandbox == nil {
		return usageErrorf("%s requests no sandbox: write \"sandbox: python\" in its front matter, or leave out --agent to have all tools", m.agentFile)
	}
	m.agent, m.caller.AgentName = agent.Sandbox, agent.Name
	return nil
}

// serveMCP serves on stdin and stdout until the agent hangs up. All messages go to stderr.
func (a *app) serveMCP(cmd *cobra.Command, m *mcpCommand) error {
	cfg, err := a.loadBuilder()
	if err != nil {
		return err
	}
	if _, err := cfg.ToolOptions(""); err != nil {
		return err // fail before anything starts
	}
	cfg.SetSessionTimes(&m.idleTimeout, &m.maxLifetime)
	spec, err := m.spec.buildSpec(cmd.Context(), a, nil)
	if err != nil {
		return err
	}
	spec.Project = ""
	a.longRunning = true
	if isTerminal(a.stdin) {
		a.printMessage("an agent must start this command: see atoll mcp --help")
	}
	return a.withConnection(cmd, func(ctx context.Context, c *connection) (err error) {
		maker := cmp.Or(c.maker, c.Info().Name)
		if given := m.caller.Scope != (session.Scope{}) || m.caller.WorkflowRunID != "" || m.caller.AgentRunID != ""; given && !c.survives {
			a.printMessage("sandboxes of the provider %s end with this command: to share one, start a server first, with atoll serve --provider %[1]s", maker)
		}
		door := &portForwarder{a: a}
		door.ctx, door.cancel = context.WithCancel(ctx)
		defer door.closeForwards()
		kit, err := a.newKit(cfg, kitOptions{
			provider: c.Provider, maker: maker, sandbox: *spec, agent: m.agent, url: door.forwardURL, log: a.newNoteLogger(cfg.Config),
			idleTimeout: m.idleTimeout, maxLifetime: m.maxLifetime, outputLimit: m.outputLimit,
		})
		if err != nil {
			return err
		}
		server, err := mcp.NewServer(kit, mcp.Options{Version: buildVersion().Version, Caller: m.caller, Log: a.newNoteLogger(cfg.Config)})
		if err != nil {
			return errors.Join(err, kit.Close())
		}
		err = server.Run(ctx, a.stdin, a.stdout)
		return errors.Join(err, server.Close(), kit.Close())
	})
}

// A portForwarder forwards ports of this machine into sandboxes.
type portForwarder struct {
	a      *app
	ctx    context.Context // ends with the forwarder
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu        sync.Mutex
	listeners map[forwardKey]net.Listener
}

type forwardKey struct {
	sandbox string
	port    int
}

// maxForwards is the maximum number of forwarded ports.
const maxForwards = 100

// forwardURL forwards a port of a sandbox and returns its local URL. It ends the forwards of other sandboxes: the
// agent has one sandbox at a time.
func (d *portForwarder) forwardURL(_ context.Context, sb atoll.Sandbox, port int) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	to := forwardKey{sb.ID(), port}
	for old, l := range d.listeners {
		if old.sandbox != to.sandbox {
			l.Close()
			delete(d.listeners, old)
		}
	}
	l := d.listeners[to]
	if l == nil && len(d.listeners) >= maxForwards {
		return "", atoll.Errorf("", "", atoll.ErrExhausted, "%d ports of the sandbox are already forwarded: forward one port of a proxy instead", maxForwards)
	}
	if l == nil {
		var err error
		if l, err = (&net.ListenConfig{}).Listen(d.ctx, "tcp", net.JoinHostPort("127.0.0.1", "0")); err != nil {
			return "", atoll.E("listen", "", atoll.ErrUnavailable, err)
		}
		if d.listeners == nil {
			d.listeners = map[forwardKey]net.Listener{}
		}
		d.listeners[to] = l
		d.work.Go(func() { d.a.acceptConns(d.ctx, l, sb, port) })
	}
	return "http://127.0.0.1:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// closeForwards ends all forwards and waits for their connections.
func (d *portForwarder) closeForwards() {
	d.cancel()
	d.mu.Lock()
	for _, l := range d.listeners {
		l.Close()
	}
	d.mu.Unlock()
	d.work.Wait()
}
