//go:build !client

package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/mcpconfig"
)

// An installCommand has the flags of atoll mcp install and uninstall.
type installCommand struct {
	project  string
	print    bool
	denyBash bool
	remove   bool
}

func newMCPInstall(a *app) *cobra.Command {
	var m installCommand
	cmd := &cobra.Command{
		Use:   "install [flags] CLIENT [-- FLAG...]",
		Short: "Add atoll mcp to the settings of a coding agent",
		Long: `Install writes an entry for atoll mcp into the settings of a coding agent: claude,
codex, cursor, gemini, vscode or zed. FLAG... are flags of atoll mcp. Without
--project-dir, the entry is in the settings of the user, and the sandbox has a
directory of its own. With it, the entry is in the settings of that project, and
the sandbox works on the directory of the project in place.

Comments, order and other entries of the file remain. If the file already has an
entry for atoll mcp, install replaces it. --print writes nothing.`,
		Example: `  atoll mcp install cursor --project-dir .
  atoll mcp install claude --deny-bash -- --allow pypi.org`,
		Args:              clientArgs,
		ValidArgsFunction: completeClients,
		RunE:              func(_ *cobra.Command, args []string) error { return m.editSettings(a, args) },
	}
	cmd.Flags().StringVar(&m.project, "project-dir", "", "`directory` of the project whose settings get the entry; by default the user's settings get it")
	cmd.Flags().BoolVar(&m.print, "print", false, "print the settings, and the files that they belong to, instead of writing")
	cmd.Flags().BoolVar(&m.denyBash, "deny-bash", false, "also deny Claude Code its own Bash tool, which runs commands outside of the sandbox")
	return cmd
}

func newMCPUninstall(a *app) *cobra.Command {
	m := installCommand{remove: true}
	cmd := &cobra.Command{
		Use:   "uninstall [flags] CLIENT",
		Short: "Remove atoll mcp from the settings of a coding agent",
		Long: `Uninstall removes the entry that atoll mcp install wrote. It leaves an entry of
another program, and all else in the file, as it is.`,
		Args:              clientArgs,
		ValidArgsFunction: completeClients,
		RunE:              func(_ *cobra.Command, args []string) error { return m.editSettings(a, args) },
	}
	cmd.Flags().StringVar(&m.project, "project-dir", "", "`directory` of the project whose settings have the entry")
	cmd.Flags().BoolVar(&m.denyBash, "deny-bash", false, "also allow Claude Code its own Bash tool again")
	return cmd
}

// clientArgs checks that the arguments are a client, and flags of atoll mcp after --.
func clientArgs(cmd *cobra.Command, args []string) error {
	before := cmd.ArgsLenAtDash()
	if before < 0 {
		before = len(args)
	}
	if before != 1 {
		return usageErrorf("name one client: %s", strings.Join(mcpconfig.Names(), ", "))
	}
	if strings.HasPrefix(cmd.Use, "uninstall") && len(args) > 1 {
		return usageErrorf("uninstall takes no flags of atoll mcp")
	}
	return nil
}

func completeClients(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return mcpconfig.Names(), cobra.ShellCompDirectiveNoFileComp
}

// editSettings adds or removes the entry of a client, or prints it.
func (m *installCommand) editSettings(a *app, args []string) error {
	client, err := mcpconfig.Find(args[0])
	if err != nil {
		return usageErrorf("%w", err)
	}
	if m.denyBash && client.Name != "claude" {
		return usageErrorf("--deny-bash is for claude: %s has no such setting", client.Title)
	}
	if m.project, err = projectDir(m.project); err != nil {
		return err
	}
	entry, err := m.newEntry(client, args[1:])
	if err != nil {
		return err
	}
	dirs := mcpconfig.DirsOf(a.env)
	file, denied := client.File(dirs, m.project), mcpconfig.DenyFile(dirs, m.project)
	if !filepath.IsAbs(file) {
		return usageErrorf("the directory of the user's settings is unknown: set HOME, or use --project-dir")
	}
	if m.print {
		fmt.Fprintf(a.stdout, "%s:\n%s", file, client.Text(entry))
		if m.denyBash {
			fmt.Fprintf(a.stdout, "\n%s:\n%s", denied, mcpconfig.DenyText("Bash"))
		}
		return nil
	}
	found := true
	err = m.editFile(a, file, func(data []byte) (rest []byte, err error) {
		if m.remove {
			rest, found, err = client.Remove(data)
			return rest, err
		}
		return client.Add(data, entry)
	})
	if err != nil {
		return err
	}
	if m.remove && !found {
		fmt.Fprintf(a.stdout, "%s has no entry of atoll mcp\n", file)
	}
	if m.denyBash {
		return m.editFile(a, denied, func(data []byte) ([]byte, error) {
			if m.remove && len(data) == 0 {
				return data, nil
			}
			return mcpconfig.Deny(data, "Bash", !m.remove)
		})
	}
	return nil
}

// editFile edits a file of settings, and prints what it did.
func (m *installCommand) editFile(a *app, name string, edit func(data []byte) ([]byte, error)) error {
	mode := fs.FileMode(0o600)
	if m.project != "" {
		mode = 0o644 // others work on the project, too
	}
	if _, err := os.Stat(name); err != nil && m.remove {
		return nil
	}
	changed, err := fsutil.EditFile(name, mode, edit)
	if err != nil {
		return usageErrorf("%w", err)
	}
	if changed {
		fmt.Fprintf(a.stdout, "changed %s\n", name)
	} else if !m.remove {
		fmt.Fprintf(a.stdout, "%s needs no change\n", name)
	}
	return nil
}

// projectDir returns the absolute path of an existing directory; "" remains "".
func projectDir(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return "", usageErrorf("--project-dir %s: no such directory", dir)
	}
	return abs, nil
}

// newEntry returns the entry of a client, with flags of atoll mcp.
func (m *installCommand) newEntry(client *mcpconfig.Client, flags []string) (mcpconfig.Entry, error) {
	mcp := newMCP(&app{})
	if err := mcp.ParseFlags(flags); err != nil {
		return mcpconfig.Entry{}, usageErrorf("atoll mcp: %w", err)
	}
	if rest := mcp.Flags().Args(); len(rest) > 0 {
		return mcpconfig.Entry{}, usageErrorf("atoll mcp takes no argument %q", rest[0])
	}
	args := []string{"mcp"}
	if m.project != "" && !mcp.Flags().Changed("workspace") {
		workspace := client.Workspace
		if workspace == "" {
			workspace = m.project
		}
		args = append(args, "--workspace", workspace)
	}
	program, err := ownProgram()
	return mcpconfig.Entry{Command: program, Args: slices.Concat(args, flags)}, err
}

// ownProgram returns the absolute path of atoll: the one in PATH if that is this program, since its path
// remains after an update.
func ownProgram() (string, error) {
	self := startedBy
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return "", err
		}
	}
	found, err := exec.LookPath("atoll")
	if err != nil {
		return self, nil
	}
	one, err1 := os.Stat(self)
	other, err2 := os.Stat(found)
	if abs, err := filepath.Abs(found); err == nil && err1 == nil && err2 == nil && os.SameFile(one, other) {
		return abs, nil
	}
	return self, nil
}
