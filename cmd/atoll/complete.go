package main

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// A completion returns completions for the shell.
type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// completeSandboxes completes sandboxes that are not among args yet.
func (a *app) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := c.List(ctx, atoll.Filter{})
		for _, st := range all {
			names = append(names, shownName(st))
		}
		return names, err
	})
}

// completeSandbox completes a sandbox as the first argument.
func (a *app) completeSandbox(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSandboxes(cmd, args, typed)
}

// completeProcess completes a sandbox as the first argument, and then its processes.
func (a *app) completeProcess(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeSandbox(cmd, args, typed)
	}
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (ids []string, err error) {
		sb, err := c.findSandbox(ctx, args[0])
		if err != nil {
			return nil, err
		}
		all, err := atoll.Processes(ctx, sb)
		for _, p := range all {
			ids = append(ids, p.ID+"\t"+shownCommand(p.Args))
		}
		return ids, err
	})
}

// completeLocation completes a path in a sandbox, SANDBOX:PATH, and leaves local paths to the shell.
func (a *app) completeLocation(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	name, typedPath, inside := strings.Cut(typed, ":")
	if inside {
		dir := typedPath[:strings.LastIndexByte(typedPath, '/')+1]
		words, directive := a.completeWith(cmd, nil, func(ctx context.Context, c *connection) (words []string, err error) {
			sb, err := c.findSandbox(ctx, name)
			if err != nil {
				return nil, err
			}
			entries, err := atoll.Files(sb).List(ctx, cmp.Or(dir, "."), false)
			for _, e := range entries {
				word := name + ":" + dir + path.Base(e.Path)
				if e.Type == atoll.TypeDirectory {
					word += "/"
				}
				words = append(words, word)
			}
			return words, err
		})
		return words, directive | cobra.ShellCompDirectiveNoSpace
	}
	words, directive := a.completeSandboxes(cmd, nil, typed)
	words = slices.DeleteFunc(words, func(w string) bool { return typed == "" || !strings.HasPrefix(w, typed) })
	if len(words) == 0 || directive == cobra.ShellCompDirectiveError {
		return nil, cobra.ShellCompDirectiveDefault
	}
	for i := range words {
		words[i] += ":"
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completePorts completes a sandbox as the first argument, and then the ports that it names.
func (a *app) completePorts(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSandbox(cmd, args, typed)
	}
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (ports []string, err error) {
		sb, err := c.findSandbox(ctx, args[0])
		if err != nil {
			return nil, err
		}
		st, err := sb.Status(ctx)
		for _, p := range st.Spec.Ports {
			ports = append(ports, strconv.Itoa(p.Port)+"\t"+p.Name)
		}
		return ports, err
	})
}

// completeFilter completes a filter of sandboxes.
func (a *app) completeFilter(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	key, _, complete := strings.Cut(typed, "=")
	if !complete {
		return []string{"name=", "project=", "provider=", "state=", "label="}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	var values []string
	switch key {
	case "state":
		for _, s := range states {
			values = append(values, string(s))
		}
	case "provider":
		for _, e := range config.Providers() {
			values = append(values, e.Name)
		}
	case "name":
		values, _ = a.completeSandboxes(cmd, nil, typed)
	}
	for i := range values {
		values[i] = key + "=" + values[i]
	}
	return values, cobra.ShellCompDirectiveNoFileComp
}

// completeVolumes completes the volumes of the project.
func (a *app) completeVolumes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (names []string, err error) {
		all, err := atoll.Volumes(ctx, c.Provider, c.project)
		for _, v := range all {
			names = append(names, v.Name)
		}
		return names, err
	})
}

// completeSnapshots completes the ids of snapshots.
func (a *app) completeSnapshots(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeWith(cmd, args, func(ctx context.Context, c *connection) (ids []string, err error) {
		all, err := atoll.Snapshots(ctx, c.Provider)
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		return ids, err
	})
}

// completeWith completes the words that list returns, except for those in args.
func (a *app) completeWith(cmd *cobra.Command, args []string, list func(ctx context.Context, c *connection) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	a.takeSettings(cmd.Flags())
	var words []string
	err := a.withConnection(cmd, func(ctx context.Context, c *connection) (err error) {
		words, err = list(ctx, c)
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(args, w) })
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeCommands completes the commands below the one in args.
func completeCommands(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	about, _, err := cmd.Root().Find(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range about.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name()+"\t"+c.Short)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// fixedWords returns a completion of fixed words.
func fixedWords(list ...string) completion {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}
