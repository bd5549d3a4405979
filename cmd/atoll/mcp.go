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

// An mcpCommand is what atoll mcp was asked for.
type mcpCommand struct {
	spec      specFlags
	agentFile string
	session   string
	caller    tools.Caller
	agent     *frontmatter.Sandbox

	idleTimeout, maxLifetime atoll.Duration
}

func newMCP(a *app) *cobra.Command {
	var m mcpCommand
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Give a coding agent a sandbox, by the Model Context Protocol",
		Long: `Mcp serves tools to the agent that has started it, on stdin and stdout: a sandbox
to run commands in, files in it to read and change, and its ports. The sandbox is
made when it is first used, and removed when the agent ends, unless --workflow,
--agent-run or --session names whose it is: then whoever names the same shares it,
until atoll session end. One that no tool has used for --idle-timeout is removed, too:
the agent is told when it has another one then, without the files of that.

With --agent there are the tools that the agent's file asks for: sandbox_run in mode
compute, those of a sandbox that stays in mode code. Variables named ATOLL_CODE_X
are X in the sandbox. A port that the agent shows is forwarded from 127.0.0.1 as
long as this runs.`,
		Example: `  claude mcp add atoll -- atoll mcp
  atoll mcp --workspace . --network on
  atoll mcp --agent agents/code-developer.md --workflow wf_abc123`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := m.read(); err != nil {
				return err
			}
			return a.serveMCP(cmd, &m)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&m.agentFile, "agent", "", "`file` of the agent, whose front matter says which tools it has, and of what its sandbox is")
	flags.StringVar(&m.caller.WorkflowRunID, "workflow", "", "`id` of the workflow run whose sandbox this is")
	flags.StringVar(&m.caller.AgentRunID, "agent-run", "", "`id` of the agent's run, whose sandbox this is if its file or no --workflow says so")
	flags.StringVar(&m.session, "session", "", "`scope` of the session whose sandbox this is, KIND/ID")
	sessionTimes(flags, &m.idleTimeout, &m.maxLifetime)
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	m.spec.register(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(sessionsOwn, flag.Name) && !slices.Contains(noneOfTools, flag.Name) {
			flags.AddFlag(flag)
		}
	})
	flags.Lookup("image").Usage = "root file system of the sandbox, unless the agent names one: an OCI `image`, or host for this machine's own tools (default host on gvisor, the only one on local and mock, else ubuntu:22.04)"
	return cmd
}

// noneOfTools are the flags of a sandbox that make no sense for one of many, or
// that an image is instead of.
var noneOfTools = []string{"name", "snapshot", "quiet"}

// read checks what the flags say of the agent.
func (m *mcpCommand) read() (err error) {
	if m.session != "" {
		if m.caller.WorkflowRunID != "" || m.caller.AgentRunID != "" {
			return usagef("--session says whose the sandbox is: leave out --workflow and --agent-run")
		}
		if m.caller.Scope, err = session.ParseScope(m.session); err != nil {
			return err
		}
	}
	for _, id := range []string{m.caller.WorkflowRunID, m.caller.AgentRunID} {
		if id != "" && !atoll.ValidName(id) {
			return usagef("id %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", id)
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
		return usagef("%s asks for no sandbox: write \"sandbox: python\" in its front matter, or leave out --agent to have all tools", m.agentFile)
	}
	m.agent, m.caller.AgentName = agent.Sandbox, agent.Name
	return nil
}

// serveMCP serves on stdin and stdout until the agent hangs up. Whatever else there
// is to say goes to stderr.
func (a *app) serveMCP(cmd *cobra.Command, m *mcpCommand) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if _, err := cfg.ToolOptions(""); err != nil {
		return err // before anything is started
	}
	spec, err := m.spec.build(a, nil)
	if err != nil {
		return err
	}
	spec.Project = ""
	a.long = true
	if isTerminal(a.stdin) {
		a.say("this talks to an agent, which is to start it: see atoll mcp --help")
	}
	return a.with(cmd, func(ctx context.Context, c *connection) (err error) {
		maker := cmp.Or(c.maker, c.Info().Name)
		if given := m.caller.Scope != (session.Scope{}) || m.caller.WorkflowRunID != "" || m.caller.AgentRunID != ""; given && !c.lives {
			a.say("sandboxes of the provider %s end with this command: to share one, start a server first, with atoll serve --provider %[1]s", maker)
		}
		door := &doorway{a: a}
		door.ctx, door.cancel = context.WithCancel(ctx)
		defer door.close()
		kit, err := a.newKit(cfg, toolbench{
			provider: c.Provider, maker: maker, sandbox: *spec, agent: m.agent, url: door.url, log: a.notes(cfg),
			idleTimeout: m.idleTimeout, maxLifetime: m.maxLifetime,
		})
		if err != nil {
			return err
		}
		server, err := mcp.NewServer(kit, mcp.Options{Version: buildVersion().Version, Caller: m.caller, Log: a.notes(cfg)})
		if err != nil {
			return errors.Join(err, kit.Close())
		}
		err = server.Run(ctx, a.stdin, a.stdout)
		return errors.Join(err, server.Close(), kit.Close())
	})
}

// A doorway forwards ports of this machine into sandboxes.
type doorway struct {
	a      *app
	ctx    context.Context // ends with it
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu   sync.Mutex
	open map[doorTo]net.Listener
}

type doorTo struct {
	sandbox string
	port    int
}

// maxDoors is how many ports of a sandbox are forwarded.
const maxDoors = 100

// url listens for a port of a sandbox, once, and no more for one that was there
// before it: whoever has started us has one at a time.
func (d *doorway) url(_ context.Context, sb atoll.Sandbox, port int) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	to := doorTo{sb.ID(), port}
	for old, l := range d.open {
		if old.sandbox != to.sandbox {
			l.Close()
			delete(d.open, old)
		}
	}
	l := d.open[to]
	if l == nil && len(d.open) >= maxDoors {
		return "", atoll.Errorf("", "", atoll.ErrExhausted, "%d ports of the sandbox are shown already: have one server pass requests on to the others", maxDoors)
	}
	if l == nil {
		var err error
		if l, err = (&net.ListenConfig{}).Listen(d.ctx, "tcp", net.JoinHostPort("127.0.0.1", "0")); err != nil {
			return "", atoll.E("listen", "", atoll.ErrUnavailable, err)
		}
		if d.open == nil {
			d.open = map[doorTo]net.Listener{}
		}
		d.open[to] = l
		d.work.Go(func() { d.a.accept(d.ctx, l, sb, port) })
	}
	return "http://127.0.0.1:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// close ends what is forwarded.
func (d *doorway) close() {
	d.cancel()
	d.mu.Lock()
	for _, l := range d.open {
		l.Close()
	}
	d.mu.Unlock()
	d.work.Wait()
}
