package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// defaultLogLevel is the log level of commands if none is configured.
const defaultLogLevel = slog.LevelWarn

// The groups of commands in the help.
const (
	groupRun    = "run"
	groupLife   = "life"
	groupKeep   = "keep"
	groupSystem = "system"
)

// A command is a command below root.
type command struct {
	name  string
	group string // in the help
	make  func(*app) *cobra.Command
}

// namedCommands returns the commands whose names are among args: to make all takes a quarter of the time of a start.
func namedCommands(args []string) []command {
	return slices.DeleteFunc(slices.Clone(commands), func(c command) bool { return !slices.Contains(args, c.name) })
}

// hasCommand reports whether root has the command of args.
func hasCommand(root *cobra.Command, args []string) bool {
	cmd, _, err := root.Find(args)
	return err == nil && cmd.Runnable()
}

// newPartialRoot returns the command atoll with cmds below it, in their order.
func newPartialRoot(a *app, cmds []command) *cobra.Command {
	a.flags = map[string]string{}
	root := &cobra.Command{
		Use:   "atoll",
		Short: "A computer of its own for every agent, on any machine",
		Long: `Atoll makes isolated sandboxes in which agents run commands, write files and
keep their work. The first one needs nothing but this program:

  atoll run -- sh -c 'echo $((6*7))'

A sandbox is named by its name, its id, or the beginning of its id (four digits
or more, as long as it is the only one). With a server running for the state
directory (atoll serve), or with --url, commands use that; else each is the
server for as long as it runs.`,
		Version:            buildVersion().firstLine(),
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // unknownCommandError suggests
		CompletionOptions:  cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.parsed = true
			a.takeSettings(cmd.Flags())
			return a.beginCommand(cmd)
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.configFile, "config", "", "configuration `file` (default $XDG_CONFIG_HOME/atoll/config.yaml)")
	a.color = "auto"
	flags.Var(&a.color, "color", "colour states in tables: auto (on a terminal, unless NO_COLOR is set), always or never")
	for _, s := range settings {
		flags.String(flagName(s.key), "", s.doc)
	}
	root.Flags().BoolP("version", "v", false, "print the version of this binary; atoll version prints more")
	root.SetVersionTemplate("{{.Version}}\n")
	setUsage(root)
	shortenHelp(a, root)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetIn(a.stdin)
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run commands:"},
		&cobra.Group{ID: groupLife, Title: "Sandboxes:"},
		&cobra.Group{ID: groupKeep, Title: "Resources that outlive sandboxes:"},
		&cobra.Group{ID: groupSystem, Title: "This program:"},
	)
	for _, c := range cmds {
		cmd := c.make(a)
		cmd.GroupID, cmd.DisableFlagsInUseLine = c.group, true
		for _, sub := range cmd.Commands() {
			sub.DisableFlagsInUseLine = true
		}
		root.AddCommand(cmd)
	}
	root.SetFlagErrorFunc(flagError)
	showUsage(root)
	return root
}

// shortenHelp shows the flags of all commands in the help of root only, and no help for an unknown command.
func shortenHelp(a *app, root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if a.unknownErr = unknownCommand(cmd); a.unknownErr != nil {
			return
		}
		global := root.PersistentFlags()
		global.VisitAll(func(f *pflag.Flag) { f.Hidden = cmd != root })
		help(cmd, args)
		global.VisitAll(func(f *pflag.Flag) { f.Hidden = false })
		if cmd != root {
			fmt.Fprintln(cmd.OutOrStdout(), "\nEvery command has the flags of atoll --help, too.")
		}
	})
}

// settings are the settings with a flag of every command.
var settings = []struct{ key, doc string }{
	{"provider", "`name` of the provider of new sandboxes: gvisor (default on Linux), vmdocker (elsewhere), docker (if those do not work), native, microvm, kubernetes, modal, local, mock or a plugin"},
	{"project", "`project` of the sandboxes (default default)"},
	{"state_dir", "`directory` of sandboxes, volumes and caches (default $XDG_STATE_HOME/atoll)"},
	{"context", "`name` of the server to use: see atoll context (default the one of atoll context use)"},
	{"url", "`url` of the server to use: http://host:port or unix:///path"},
	{"token", "`reference` to the bearer token for --url: env:NAME or file:/path"},
	{"log.level", "lowest `level` to log: debug, info, warn or error (default auto: short warnings)"},
	{"log.format", "`format` of the log: text or json (default text)"},
}

func flagName(key string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(key) }

// takeSettings stores the settings that were given as flags.
func (a *app) takeSettings(flags *pflag.FlagSet) {
	for _, s := range settings {
		if f := flags.Lookup(flagName(s.key)); f != nil && f.Changed {
			a.flags[s.key] = f.Value.String()
		}
	}
}

// groupOf returns the group of cmd in the help.
func groupOf(cmd *cobra.Command) string {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd.GroupID
}
