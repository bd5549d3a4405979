//go:build !client

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/recipe"
	"github.com/seed46cd37a8/atoll/internal/agentgit"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// The places of an agent in its sandbox.
const (
	agentHome    = "/atoll/home"    // persists for all agents of this kind in a repository
	agentProgram = "/atoll/program" // of this machine, or installed
)

// A start has what the start of one agent needs.
type start struct {
	*agentFlags
	app     *app
	recipe  *recipe.Recipe
	desk    *desk
	dir     string         // of the user's files
	repo    *agentgit.Repo // nil with --in-place
	spec    *atoll.Spec
	paths   []string // directories of programs, before those of the image
	install bool     // the sandbox has to install the program
}

// startAgent starts an agent, and waits for its end unless it is detached.
func (f *agentFlags) startAgent(a *app, cmd *cobra.Command, name string) (err error) {
	recipes, err := a.loadRecipes()
	if err != nil {
		return err
	}
	s := &start{agentFlags: f, app: a}
	if s.recipe, err = recipes.Find(name); err != nil {
		return err
	}
	headless := f.prompt != ""
	switch {
	case f.detach && !headless:
		return usageErrorf("-d needs a task: -p TEXT")
	case !headless && !isTerminal(a.stdin):
		return usageErrorf("stdin is not a terminal: give the agent a task with -p TEXT")
	}
	command, err := s.recipe.Command(recipe.Start{Prompt: f.prompt, Headless: headless, Args: f.args})
	if err != nil {
		return err
	}
	if err := s.buildSpec(cmd.Context()); err != nil {
		return err
	}
	con, err := a.newConsole(cmd.Context(), consoleOptions{stdin: !headless, tty: !headless, detach: defaultKeys()})
	if err != nil {
		return err
	}
	defer con.closeConsole()
	c, err := a.openConnection(con.ctx)
	if err != nil {
		return con.breakCause(err)
	}
	exit, err := s.runAgent(con, c, command)
	err = errors.Join(c.explainError(con.ctx, err), c.Close())
	con.closeConsole()
	if errors.Is(err, errDetached) {
		a.printMessage("%s works on: atoll agent attach %[1]s, logs, diff, apply, stop", s.desk.Name)
		return nil
	}
	if err != nil || f.detach {
		return err
	}
	return asExit(exit)
}

// defaultKeys returns the keys that detach.
func defaultKeys() []byte {
	keys, _ := parseKeys(defaultDetachKeys)
	return keys
}

// runAgent makes the desk and the sandbox of the agent, runs its program, and takes its work. If it fails before the program runs, nothing remains.
func (s *start) runAgent(con *console, c *connection, command []string) (exit atoll.Exit, err error) {
	ctx := con.ctx
	if err := s.makeDesk(ctx); err != nil {
		return exit, con.breakCause(err)
	}
	began := false
	defer func() {
		if !began {
			err = errors.Join(err, s.app.discardDesk(context.WithoutCancel(ctx), c, s.desk))
		}
	}()
	if err := s.app.prepareSandbox(ctx, c, s.spec, s.quiet); err != nil {
		return exit, con.breakCause(c.adviseCreate(s.spec, err))
	}
	end := s.app.watchCreation(s.spec, s.quiet)
	sb, err := c.Create(ctx, s.spec)
	end()
	if err != nil {
		return exit, con.breakCause(c.adviseCreate(s.spec, err))
	}
	env, err := s.prepareHome(ctx, sb)
	if err == nil && s.install {
		err = s.installProgram(ctx, con, sb)
	}
	if err != nil {
		return exit, con.breakCause(err)
	}
	run := &atoll.Command{Args: command, Env: env, TTY: con.size}
	if !s.detach {
		if err := con.takeTerminal(); err != nil {
			return exit, err
		}
		run.Stdin, run.Stdout, run.Stderr = con.stdin, con.stdout, con.stderr
	}
	p, err := sb.Exec(ctx, run)
	if err != nil {
		return exit, con.breakCause(err)
	}
	began = true
	s.desk.Process = p.ID()
	if err := s.desk.writeRecord(); err != nil {
		return exit, err
	}
	if s.detach {
		s.app.printMessage("%s works in the background: atoll agent logs %[1]s, attach, diff, apply, stop", s.desk.Name)
		_, err := fmt.Fprintln(s.app.stdout, s.desk.Name)
		return exit, err
	}
	exit, err = con.followProcess(p, nil)
	if errors.Is(err, errDetached) {
		return exit, err
	}
	con.restore()
	return exit, errors.Join(err, s.endAgent(context.WithoutCancel(ctx), sb))
}

// endAgent takes the work of an agent that has ended, describes it, and stops the sandbox.
func (s *start) endAgent(ctx context.Context, sb atoll.Sandbox) error {
	var err error
	if s.repo != nil {
		var commit, text string
		if commit, err = s.desk.importWork(ctx, sb, s.repo); err == nil {
			text, err = describeWork(ctx, s.repo, s.desk.Work.Base, commit)
		}
		if err == nil {
			s.app.printMessage("%s: %s; atoll agent diff %[1]s shows it, and atoll agent apply %[1]s takes it", s.desk.Name, text)
		}
	}
	if refusals, refErr := atoll.RefusalsOf(ctx, sb); refErr == nil && refusals.Total > 0 {
		s.app.printMessage("the network refused %d requests: atoll net log --refused %s", refusals.Total, s.desk.Name)
	}
	return errors.Join(err, sb.Stop(ctx, atoll.DefaultStopGrace))
}

// makeDesk makes the directory of the agent, with its worktree, and adds that to the spec.
func (s *start) makeDesk(ctx context.Context) (err error) {
	if s.desk, err = s.app.newDesk(s.name, s.recipe.Name); err != nil {
		return err
	}
	d := s.desk
	d.Agent, d.Mode, d.Dir, d.Sandbox = s.recipe.Name, modeInPlace, s.dir, atoll.NewID()
	s.spec.Name, s.spec.ID = d.Name, d.Sandbox
	s.spec.Labels = map[string]string{"agent": d.Agent, "agent.name": d.Name}
	if s.repo == nil {
		return d.writeRecord()
	}
	d.Mode = modeWorktree
	d.Work, err = s.repo.AddWork(ctx, d.Name, cmp.Or(s.branch, "atoll/"+d.Name), "HEAD", filepath.Join(d.dir, "work"))
	if err != nil {
		return errors.Join(err, os.RemoveAll(d.dir))
	}
	s.spec.Workdir = d.Work.Dir
	s.spec.Mounts = append(s.spec.Mounts, d.Work.Mounts()...)
	if s.repo.Dirty {
		s.app.printMessage("note: the agent begins at your last commit, %.12s, and does not see your changes since then", d.Work.Base)
	}
	return d.writeRecord() // so that discard finds all of it, whenever this program is killed
}

// buildSpec makes the spec of the sandbox from the flags and the recipe.
func (s *start) buildSpec(ctx context.Context) (err error) {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if !s.inPlace {
		if s.repo, err = agentgit.Find(ctx, dir); err != nil {
			return err
		}
		dir = s.repo.Dir
	}
	s.dir = dir
	mode := s.network
	if s.spec, err = s.specFlags.buildSpec(ctx, s.app, nil); err != nil {
		return err
	}
	spec := s.spec
	given := func(name string) bool {
		return slices.ContainsFunc(spec.Secrets, func(x atoll.Secret) bool { return x.Name == name })
	}
	secrets, err := s.recipe.FindSecrets(func(name string) string {
		if given(name) {
			return name
		}
		return s.findVariable(name)
	})
	if err != nil {
		return err
	}
	for i := range secrets {
		if given(secrets[i].Name) {
			continue
		}
		if err := loadSecret(ctx, &secrets[i], s.app.env, false); err != nil {
			return err
		}
		spec.Secrets = append(spec.Secrets, secrets[i])
	}
	if mode == "" && spec.Network.Mode != atoll.NetworkOn {
		spec.Network.Mode = atoll.NetworkEgress
	}
	if spec.Network.Mode == atoll.NetworkEgress {
		spec.Network.Allow = append(spec.Network.Allow, withoutEntries(s.recipe.Allow, spec.Network.Allow)...)
	}
	if s.inPlace {
		spec.Workspace, spec.Workdir = atoll.WorkspaceRef{Source: dir}, workspace.Dir
	}
	spec.Mounts = append(spec.Mounts, atoll.Mount{Type: atoll.MountVolume, Source: fmt.Sprintf("agent-%s-%08x", s.recipe.Name, hashOf(dir)), Target: agentHome})
	s.placeProgram()
	spec.Env = append(gitIdentity(s.app.env, dir), spec.Env...)
	spec.Env = append(spec.Env, "HOME="+agentHome, "PATH="+s.searchPath())
	return nil
}

func hashOf(text string) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, text)
	return h.Sum32()
}

// findVariable returns the value of a variable of the user, "" if it is not set.
func (s *start) findVariable(name string) string {
	for _, kv := range slices.Backward(s.app.env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// placeProgram mounts the program of this machine, if there is one and the sandbox has the programs of this machine; otherwise the sandbox has to
// install it.
func (s *start) placeProgram() {
	ownImage := s.spec.Image == "" || s.spec.Image == "host"
	if ownImage && s.addProgram(s.recipe.Exec) {
		if slices.ContainsFunc(s.recipe.Install.Needs, func(n string) bool { return strings.HasPrefix(n, "node") }) {
			s.addProgram("node")
		}
		return
	}
	if s.install = len(s.recipe.Install.NPM) > 0 || len(s.recipe.Install.Pip) > 0 || s.recipe.Install.Script != ""; !s.install {
		return
	}
	s.addProgram("node")
	s.spec.Mounts = append(s.spec.Mounts, atoll.Mount{Type: atoll.MountVolume, Source: "agent-" + s.recipe.Name, Target: agentProgram})
	s.paths = append(s.paths, agentProgram+"/bin")
}

// visible are the directories of this machine that sandboxes with its programs have.
var visible = []string{"/usr", "/bin", "/sbin", "/lib"}

// addProgram mounts a program of this machine, with what belongs to it, and reports whether there is one.
func (s *start) addProgram(name string) bool {
	found, err := exec.LookPath(name)
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(found)
	if err != nil {
		return false
	}
	if slices.ContainsFunc(visible, func(dir string) bool { return strings.HasPrefix(real, dir+"/") }) && slices.ContainsFunc(visible, func(dir string) bool { return strings.HasPrefix(found, dir+"/") }) {
		return true
	}
	show := func(source, target string) {
		m := atoll.Mount{Type: atoll.MountBind, Source: source, Target: target, ReadOnly: true}
		if !slices.Contains(s.spec.Mounts, m) {
			s.spec.Mounts = append(s.spec.Mounts, m)
		}
	}
	if prefix, _, ok := strings.Cut(real, "/node_modules/"); ok { // of npm, with the packages that it needs
		show(prefix+"/node_modules", prefix+"/node_modules")
		bin := filepath.Dir(found)
		if !strings.HasPrefix(bin, prefix+"/node_modules/") {
			show(bin, bin)
		}
		s.paths = append(s.paths, bin)
		return true
	}
	show(real, path.Join(agentProgram, name))
	if !slices.Contains(s.paths, agentProgram) {
		s.paths = append(s.paths, agentProgram)
	}
	return true
}

// searchPath returns the PATH of the agent.
func (s *start) searchPath() string {
	return strings.Join(append(slices.Clone(s.paths), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"), ":")
}

// prepareHome writes the files that the agent needs in its home directory, and returns the variables of its program.
func (s *start) prepareHome(ctx context.Context, sb atoll.Sandbox) (env []string, err error) {
	st, err := sb.Status(ctx)
	if err != nil {
		return nil, err
	}
	p := recipe.Params{Home: agentHome, Workdir: s.spec.Workdir, Secrets: map[string]string{}}
	for _, secret := range st.Spec.Secrets {
		p.Secrets[secret.Name] = secret.Placeholder
	}
	files, err := s.recipe.RenderFiles(p)
	if err != nil {
		return nil, err
	}
	home := atoll.Files(sb)
	for _, f := range files {
		if err := writeAgentFile(ctx, home, path.Join(agentHome, f.Path), f); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	vars, err := s.recipe.RenderEnv(p)
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	for _, name := range []string{"TERM", "COLORTERM", "LANG", "NO_COLOR"} {
		if value := s.findVariable(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env, err
}

// maxAgentFile is the size in bytes of the largest file to which a recipe can add.
const maxAgentFile = 1 << 20

// writeAgentFile writes a file of a recipe, for its owner only.
func writeAgentFile(ctx context.Context, home atoll.FS, name string, f recipe.File) error {
	content := f.Content
	if f.When != recipe.WhenAlways {
		old, err := readAgentFile(ctx, home, name)
		switch {
		case err != nil && atoll.KindOf(err) != atoll.ErrNotExist:
			return err
		case err == nil && f.When == recipe.WhenMissing:
			return nil
		case err == nil:
			if content, err = recipe.Merge(old, content); err != nil {
				return err
			}
		}
	}
	if err := home.Mkdir(ctx, path.Dir(name), 0o700); err != nil {
		return err
	}
	_, err := home.Write(ctx, name, bytes.NewReader(content), atoll.WriteOptions{Mode: 0o600})
	return err
}

func readAgentFile(ctx context.Context, home atoll.FS, name string) ([]byte, error) {
	r, _, err := home.Read(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxAgentFile))
}

// installProgram installs the program of the agent in its volume, unless that has this version, and allows the registry for that time only.
func (s *start) installProgram(ctx context.Context, con *console, sb atoll.Sandbox) error {
	in := s.recipe.Install
	script, registry := in.Script, []string(nil)
	switch {
	case len(in.NPM) > 0:
		registry = []string{"npm"}
		script = "command -v npm >/dev/null || { echo 'the image has no npm: choose one with --image, like node:22' >&2; exit 127; }\n" +
			"npm install --global --no-audit --no-fund --prefix " + agentProgram + " " + strings.Join(in.NPM, " ") + " >&2"
	case len(in.Pip) > 0:
		registry = []string{"pypi"}
		script = "python3 -m venv " + agentProgram + " && " + agentProgram + "/bin/pip install --quiet " + strings.Join(in.Pip, " ") + " >&2"
	}
	version := fmt.Sprintf("%08x", hashOf(script))
	script = fmt.Sprintf("[ \"$(cat %[1]s/.atoll-version 2>/dev/null)\" = %[2]s ] && exit 0\nset -e\n%[3]s\necho %[2]s > %[1]s/.atoll-version\n", agentProgram, version, script)
	missing := withoutEntries(registry, s.spec.Network.Allow)
	if s.spec.Network.Mode == atoll.NetworkEgress && len(missing) > 0 {
		if _, err := changeNetwork(ctx, sb, func(n *atoll.Network) { allowEntries(n, missing) }); err != nil {
			return err
		}
		defer func() {
			_, _ = changeNetwork(context.WithoutCancel(ctx), sb, func(n *atoll.Network) { n.Allow = withoutEntries(n.Allow, missing) })
		}()
	}
	s.app.printMessage("installing %s in the sandbox, once for this project", s.recipe.Title)
	res, err := atoll.Capture(ctx, sb, &atoll.Command{Args: []string{"sh", "-c", script}, Stdin: strings.NewReader("")}, 8<<10)
	if err == nil && !res.Success() {
		err = atoll.Errorf("agent", s.recipe.Name, atoll.ErrUnavailable, "it cannot be installed: %s", strings.TrimSpace(string(res.Stderr)))
	}
	return err
}
