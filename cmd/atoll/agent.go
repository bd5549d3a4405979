//go:build !client

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/recipe"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/agentgit"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

func newAgent(a *app) *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent [flags] AGENT [-- ARG...]",
		Short: "Let a coding agent work on a git repository in a sandbox",
		Long: `Agent starts a coding agent in a sandbox, in the git repository of the current
directory: claude, codex, gemini, opencode, copilot, aider, goose, amp, or shell for a
shell without an agent. It asks for no permissions: the sandbox is the limit. Your keys
stay outside: the agent has placeholders, and Atoll puts the keys into requests to the
hosts that they are for. The agent reaches these hosts and what --allow adds.

The agent works in a git worktree of its own, on a branch of its own, so that several
agents can work side by side. It cannot write to your repository. When it ends, or with
atoll agent diff and apply at any time, its commits come into yours. Files that programs
of this machine run without being asked, such as .envrc or .vscode, are held back.

On a terminal the agent is interactive; -p TEXT has it do one task and end. With -d it
works in the background. Arguments after -- are for the agent's program.

Atoll uses the program of this machine, if it is installed, or else installs it in the
sandbox. More agents are YAML files in the directory agents of the configuration.`,
		Example: `  atoll agent claude
  atoll agent claude -p "fix the failing test"
  atoll agent codex --name second --allow pypi -d -p "add a benchmark"
  atoll agent diff second`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
				return usageErrorf("%q: give a task with -p TEXT, and arguments of the agent's program after --", args[1])
			}
			f.args = args[1:]
			return f.startAgent(a, cmd, args[0])
		},
	}
	f.addFlags(cmd.Flags())
	cmd.AddCommand(newAgentLs(a), newAgentDiff(a), newAgentApply(a), newAgentAttach(a), newAgentLogs(a), newAgentStop(a), newAgentDiscard(a))
	return cmd
}

// Modes of an agent: where it has the repository from.
const (
	modeWorktree = "worktree"
	modeInPlace  = "in-place"
)

// An agentFlags has the flags of atoll agent.
type agentFlags struct {
	specFlags
	name    string
	branch  string
	prompt  string
	inPlace bool
	detach  bool
	args    []string
}

func (f *agentFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.name, "name", "", "`name` of the agent, its sandbox and its branch (default that of its program)")
	fs.StringVar(&f.branch, "branch", "", "new `branch` for its work (default atoll/NAME)")
	fs.StringVarP(&f.prompt, "prompt", "p", "", "`task` to do without a terminal; the exit code is that of the agent")
	fs.BoolVar(&f.inPlace, "in-place", false, "work on the files of the current directory themselves, without git")
	fs.BoolVarP(&f.detach, "detach", "d", false, "leave it working in the background; needs -p")
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.specFlags.addFlags(all)
	for _, name := range []string{"image", "env", "env-file", "volume", "memory", "cpus", "pids", "disk", "network", "allow", "deny", "secret", "policy", "expose", "quiet"} {
		if flag := all.Lookup(name); flag != nil {
			fs.AddFlag(flag)
		}
	}
}

// A deskFile is the record of an agent, in its directory.
type deskFile struct {
	Name    string         `json:"name"`
	Agent   string         `json:"agent"`
	Mode    string         `json:"mode"`
	Dir     string         `json:"dir"` // the files of the user
	Work    *agentgit.Work `json:"work,omitempty"`
	Sandbox string         `json:"sandbox"`
	Process string         `json:"process"`
}

// A desk is an agent with its record.
type desk struct {
	deskFile
	dir string // of the record and the worktree
}

const deskName = "agent.json"

// agentsDir returns the directory with the records of agents.
func (a *app) agentsDir() (string, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return "", err
	}
	if cfg.URL != "" && !strings.HasPrefix(cfg.URL, "unix:") {
		return "", usageErrorf("atoll agent works on repositories of this machine: leave out --url and --context")
	}
	return filepath.Join(cfg.StateDir, "agents"), nil
}

// loadRecipes returns the recipes of Atoll and of the user.
func (a *app) loadRecipes() (recipe.Recipes, error) {
	dir, err := a.configDir()
	if err != nil {
		return nil, err
	}
	return recipe.Load(filepath.Join(dir, "agents"))
}

// configDir returns the directory of the configuration file.
func (a *app) configDir() (string, error) {
	path, err := config.Path(a.fileSource())
	return filepath.Dir(path), err
}

// openDesk returns the agent with that name.
func (a *app) openDesk(name string) (*desk, error) {
	dir, err := a.agentsDir()
	if err != nil {
		return nil, err
	}
	d := &desk{deskFile: deskFile{Name: name}, dir: filepath.Join(dir, name)}
	if info, err := os.Stat(d.dir); !atoll.ValidName(name) || err != nil || !info.IsDir() {
		return nil, atoll.Errorf("agent", name, atoll.ErrNotFound, "no agent has this name: atoll agent ls lists them")
	}
	data, err := os.ReadFile(filepath.Join(d.dir, deskName))
	switch {
	case errors.Is(err, fs.ErrNotExist): // its start was killed
		return d, nil
	case err == nil:
		err = json.Unmarshal(data, &d.deskFile)
	}
	return d, err
}

// writeRecord writes the record of the agent.
func (d *desk) writeRecord() error {
	return fsutil.WriteJSON(filepath.Join(d.dir, deskName), &d.deskFile)
}

// newDesk makes the directory of a new agent: with the given name, or the first free one like that of its program.
func (a *app) newDesk(name, program string) (*desk, error) {
	dir, err := a.agentsDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		d := &desk{deskFile: deskFile{Name: cmp.Or(name, program)}}
		if n > 1 {
			d.Name = program + "-" + strconv.Itoa(n)
		}
		if !atoll.ValidName(d.Name) {
			return nil, usageErrorf("name %q: use letters, digits, '-', '_' and '.'", d.Name)
		}
		d.dir = filepath.Join(dir, d.Name)
		err := os.Mkdir(d.dir, 0o700)
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if name != "" {
			return nil, atoll.Errorf("agent", name, atoll.ErrAlreadyExists, "there is an agent with this name: choose another, or atoll agent discard %s", name)
		}
	}
}

// listDesks returns all agents, sorted by name.
func (a *app) listDesks() (all []*desk, err error) {
	dir, err := a.agentsDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if d, err := a.openDesk(e.Name()); err == nil {
			all = append(all, d)
		}
	}
	return all, nil
}

// completeAgents completes the names of agents' programs.
func (a *app) completeAgents(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	recipes, err := a.loadRecipes()
	if len(args) > 0 || err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return recipes.Names(), cobra.ShellCompDirectiveNoFileComp
}

// completeDesks completes the names of agents at work.
func (a *app) completeDesks(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	all, err := a.listDesks()
	if len(args) > 0 || err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// findRepo returns the repository of the agent's user.
func (d *desk) findRepo(ctx context.Context) (*agentgit.Repo, error) {
	switch {
	case d.Mode == modeInPlace:
		return nil, atoll.Errorf("agent", d.Name, atoll.ErrUnsupported, "it works on your files in place: use git in %s", d.Dir)
	case d.Work == nil:
		return nil, atoll.Errorf("agent", d.Name, atoll.ErrNotExist, "it has not begun: atoll agent discard %s", d.Name)
	}
	return agentgit.Find(ctx, d.Dir)
}

// takeWork brings the work of the agent into the repository of the user, and returns its last commit. It starts a sandbox that has stopped for
// that, and uses what came earlier if the sandbox has gone.
func (d *desk) takeWork(ctx context.Context, c *connection, repo *agentgit.Repo) (commit string, err error) {
	sb, err := c.Get(ctx, d.Sandbox)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	switch {
	case atoll.KindOf(err) == atoll.ErrNotFound:
		return repo.FindWork(ctx, d.Work)
	case err != nil:
		return "", err
	case st.State == atoll.StateRunning:
		return d.importWork(ctx, sb, repo)
	}
	if err := sb.Start(ctx); err != nil {
		return "", err
	}
	commit, err = d.importWork(ctx, sb, repo)
	return commit, errors.Join(err, sb.Stop(context.WithoutCancel(ctx), 0))
}

// importWork imports the work of the agent from its sandbox, which runs.
func (d *desk) importWork(ctx context.Context, sb atoll.Sandbox, repo *agentgit.Repo) (string, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer reader.Close()
	var said atoll.Head
	said.Limit = 4 << 10
	ended := make(chan error, 1)
	go func() {
		defer writer.Close()
		ended <- atoll.Run(ctx, sb, &atoll.Command{
			Args: []string{"sh", "-c", agentgit.BundleScript, "sh", d.Work.Base}, Dir: d.Work.Dir, Stdout: writer, Stderr: &said,
		})
	}()
	commit, err := repo.Import(ctx, d.Name, d.Work.Base, reader)
	if runErr := <-ended; runErr != nil {
		return "", fmt.Errorf("git in the sandbox: %w: %s", runErr, strings.TrimSpace(string(said.Bytes())))
	}
	return commit, err
}

// describeWork returns a line about the work of an agent.
func describeWork(ctx context.Context, repo *agentgit.Repo, base, commit string) (string, error) {
	subjects, stat, err := repo.Describe(ctx, base, commit)
	if err != nil {
		return "", err
	}
	if commit == base {
		return "no changes", nil
	}
	return fmt.Sprintf("%d %s, %s", len(subjects), map[bool]string{true: "commit", false: "commits"}[len(subjects) == 1], cmp.Or(stat, "no changes")), nil
}

// describeHeld returns a line for each change that was held back.
func describeHeld(held []agentgit.Change) []string {
	lines := make([]string, len(held))
	for i, c := range held {
		lines[i] = c.Path + ": " + c.Why
	}
	slices.Sort(lines)
	return lines
}
