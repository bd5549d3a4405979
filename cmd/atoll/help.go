package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the number of columns of help texts.
const helpWidth = 100

// groupAnnotation is the annotation of a flag with its group in the help.
const groupAnnotation = "atoll_group"

// flagGroups are the groups of the flags of a new sandbox, in their order in the help. All other flags come before.
var flagGroups = []struct {
	title string
	flags []string
}{
	{"Name", []string{"name", "id", "label"}},
	{"Files", []string{"image", "snapshot", "workspace", "volume", "mount", "read-only", "cache", "cache-path"}},
	{"Commands", []string{"workdir", "user", "env", "env-file"}},
	{"Network", []string{"network", "allow", "expose", "publish"}},
	{"Resources", []string{"memory", "cpus", "pids", "disk", "gpus"}},
	{"Lifetime", []string{"ttl", "idle-stop", "idle-remove", "timeout", "detach", "keep", "rm", "no-start", "idle-timeout", "max-lifetime", "workflow"}},
}

// groupFlags puts the flags of a command that creates sandboxes into groups.
func groupFlags(fs *pflag.FlagSet) {
	for _, g := range flagGroups {
		for _, name := range g.flags {
			_ = fs.SetAnnotation(name, groupAnnotation, []string{g.title}) // fails for missing flags only
		}
	}
}

// setUsage makes the help of all commands below root show flags in groups, and in lines of at most helpWidth columns.
func setUsage(root *cobra.Command) {
	cobra.AddTemplateFunc("atollFlags", describeFlags)
	const flags = "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), flags, "{{atollFlags .LocalFlags}}", 1))
}

// describeFlags returns the help of flags.
func describeFlags(all *pflag.FlagSet) string {
	groups := map[string]*pflag.FlagSet{}
	all.VisitAll(func(f *pflag.Flag) {
		title := "Flags"
		if g := f.Annotations[groupAnnotation]; len(g) > 0 {
			title = g[0]
		}
		if groups[title] == nil {
			groups[title] = pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		groups[title].AddFlag(f)
	})
	titles := []string{"Flags"}
	for _, g := range flagGroups {
		titles = append(titles, g.title)
	}
	titles = slices.DeleteFunc(titles, func(title string) bool { return groups[title] == nil || !groups[title].HasAvailableFlags() })
	var parts []string
	for _, title := range titles {
		parts = append(parts, title+":\n"+strings.TrimRight(groups[title].FlagUsagesWrapped(helpWidth), " \n"))
	}
	return strings.Join(parts, "\n\n")
}
