//go:build !client

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

func newConfig(a *app) *cobra.Command {
	var asJSON, docs bool
	cmd := &cobra.Command{
		Use:   "config [flags]",
		Short: "Print and change the settings",
		Long: `Config prints every setting with its value and the source of the value. A setting
has the value of the first of these sources that has one: a flag, the environment
(ATOLL_ and the key in capitals, with _ for each dot), the file
($XDG_CONFIG_HOME/atoll/config.yaml, or the one of --config or ATOLL_CONFIG), the
default. Of secrets only the reference is shown.

The other commands write the file. They leave its comments and other settings as they
are, and write nothing if the file would have a mistake.`,
		Example: `  atoll config
  atoll config set resources.memory 4g
  atoll config edit`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(cfg.Values())
			}
			rows := [][]string{{"KEY", "VALUE", "FROM"}}
			if docs {
				rows[0] = append(rows[0], "MEANING")
			}
			for _, v := range cfg.Values() {
				row := []string{v.Key, orDash(v.Value), v.From}
				if docs {
					row = append(row, v.Doc)
				}
				rows = append(rows, row)
			}
			return a.printTable(rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	cmd.Flags().BoolVar(&docs, "docs", false, "print the meaning of each setting")
	cmd.AddCommand(newConfigGet(a), newConfigSet(a), newConfigUnset(a), newConfigEdit(a), newConfigInit(a), newConfigPath(a), newConfigSchema(a))
	return cmd
}

// fileSource returns the source of the configuration without flags, for changes of the file.
func (a *app) fileSource() config.Source { return config.Source{File: a.configFile, Env: a.env} }

func newConfigGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "get KEY",
		Short:             "Print the value of a setting",
		Example:           `  atoll config get state_dir`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			var keys []string
			for _, v := range cfg.Values() {
				if v.Key == args[0] {
					_, err := fmt.Fprintln(a.stdout, v.Value)
					return err
				}
				keys = append(keys, v.Key)
			}
			advice := "atoll config lists the known ones"
			if near := config.Nearest(args[0], keys); near != "" {
				advice = "the nearest known one is " + near
			}
			return usageErrorf("unknown key %q: %s", args[0], advice)
		},
	}
}

func newConfigSet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "set KEY VALUE...",
		Short: "Set a setting in the file",
		Long: `Set writes a setting to the file, and creates the file if there is none. A list has
several values. A flag or a variable of the environment takes precedence over the
file. A running server notices the change when it is started again.`,
		Example: `  atoll config set idle_stop 1h
  atoll config set listen 127.0.0.1:7070 unix:///run/atoll.sock
  atoll config set pool.small.size 2`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := config.Edit(a.fileSource(), config.Change{Key: args[0], Values: args[1:]}); err != nil {
				return refuseChange(err)
			}
			return a.noteOverridden(args[0])
		},
	}
}

// refuseChange returns the error of a change of the configuration as one of the command line if it is invalid.
func refuseChange(err error) error {
	if atoll.KindOf(err) == atoll.ErrInvalid {
		return usageError{err}
	}
	return err
}

// noteOverridden says that a variable takes precedence over the value of a key in the file.
func (a *app) noteOverridden(key string) error {
	cfg, err := config.Load(a.fileSource())
	if err != nil {
		return err
	}
	if from := cfg.Origin(key); strings.HasPrefix(from, "ATOLL_") && !strings.Contains(from, ":") {
		a.printMessage("%s is set, and takes precedence over the file", from)
	}
	return nil
}

func newConfigUnset(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "unset KEY...",
		Short:             "Remove settings from the file",
		Long:              `Unset removes settings, or whole tables such as pool.small, from the file.`,
		Example:           `  atoll config unset idle_stop`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			var changes []config.Change
			for _, key := range args {
				changes = append(changes, config.Change{Key: key})
			}
			return refuseChange(config.Edit(a.fileSource(), changes...))
		},
	}
}

func newConfigPath(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "path",
		Short:             "Print the path of the file",
		Long:              `Path prints the path of the file, whether it exists or not.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			path, err := config.Path(a.fileSource())
			if err == nil {
				_, err = fmt.Fprintln(a.stdout, path)
			}
			return err
		},
	}
}

func newConfigSchema(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the file, for editors",
		Long: `Schema prints the JSON Schema of the file. Editors with a YAML language server
complete and check the file with it. atoll config init writes it beside the file.`,
		Example:           `  atoll config schema > ~/.config/atoll/config.schema.json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.stdout.Write(config.JSONSchema())
			return err
		},
	}
}

// schemaName is the name of the JSON Schema beside the configuration file.
const schemaName = "config.schema.json"

// initialConfig is the file that atoll config init writes.
const initialConfig = `# yaml-language-server: $schema=./` + schemaName + `
#
# The configuration of Atoll. atoll config shows all settings, with --docs their meaning.
# The commented lines are examples, not the defaults.

# provider: docker            # default provider of new sandboxes; see atoll doctor
# idle_stop: 1h               # stop sandboxes that have been idle for so long
# resources:                  # limits of sandboxes that set none
#   memory: 4g
#   cpus: 2

# listen:                     # addresses of atoll serve, besides its socket
#   - 127.0.0.1:7070
`

func newConfigInit(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Create the file, with comments, and its JSON Schema",
		Long: `Init creates the file with examples as comments, and beside it ` + schemaName + `,
with which editors complete and check the file. It leaves an existing file as it is,
and brings the schema up to date.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			path, err := config.Path(a.fileSource())
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
			schema := filepath.Join(filepath.Dir(path), schemaName)
			if err := fsutil.WriteFile(schema, config.JSONSchema()); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "wrote %s\n", schema)
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if errors.Is(err, fs.ErrExist) {
				fmt.Fprintf(a.stdout, "%s exists: atoll config edit changes it\n", path)
				return nil
			}
			if err != nil {
				return err
			}
			_, err = f.WriteString(initialConfig)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(path))
			}
			fmt.Fprintf(a.stdout, "wrote %s\n", path)
			return nil
		},
	}
}

func newConfigEdit(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "edit",
		Short: "Edit the file in your editor, and check it before it is used",
		Long: `Edit opens a copy of the file in the editor of VISUAL or EDITOR. If the copy has no
mistakes when the editor ends, it replaces the file; otherwise edit prints the
mistakes, retains the copy, and opens that the next time.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.editConfig(cmd.Context()) },
	}
}

func (a *app) editConfig(ctx context.Context) error {
	src := a.fileSource()
	path, err := config.Path(src)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	draft := strings.TrimSuffix(path, filepath.Ext(path)) + ".draft" + filepath.Ext(path)
	if err := writeDraft(draft, old, missing); err != nil {
		return err
	}
	if err := a.runEditor(ctx, draft); err != nil {
		return err
	}
	data, err := os.ReadFile(draft)
	if err != nil {
		return err
	}
	if err := config.Check(src, data); err != nil {
		return usageErrorf("%s is unchanged, your text is in %s: atoll config edit opens it again\n%w", path, draft, err)
	}
	if string(data) == string(old) {
		a.printMessage("%s needs no change", path)
	} else if err := config.Replace(src, old, data); err != nil {
		return err
	}
	return os.Remove(draft)
}

// writeDraft creates the copy of the configuration that is edited, unless an earlier one with mistakes exists.
func writeDraft(draft string, old []byte, missing bool) error {
	if missing {
		old = []byte(initialConfig)
	}
	f, err := os.OpenFile(draft, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.Write(old)
	return errors.Join(err, f.Close())
}

// runEditor opens a file in the user's editor and waits for its end.
func (a *app) runEditor(ctx context.Context, file string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), map[bool]string{false: "vi", true: "notepad"}[runtime.GOOS == "windows"])
	words := append(strings.Fields(editor), file) // EDITOR may have flags, as in "code --wait"
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	if err := cmd.Run(); err != nil {
		return usageErrorf("the editor %q failed: %w; set EDITOR to another one", editor, err)
	}
	return nil
}

// completeKeys completes the key of a setting.
func (a *app) completeKeys(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "unset" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var keys []string
	for _, v := range cfg.Values() {
		keys = append(keys, v.Key+"\t"+v.Doc)
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}
