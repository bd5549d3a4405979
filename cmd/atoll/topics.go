//go:build !client

package main

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/docs"
)

// newHelp returns cobra's command help, but with pages of the manual, and an error for unknown commands.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Help about any command, and pages of the manual",
		Long: `Help prints the help of a command, or a page of the manual. Without arguments it
lists the commands and the pages.`,
		Example: `  atoll help run
  atoll help networks`,
		ValidArgsFunction: completeHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			topics := listTopics()
			about, rest, err := cmd.Root().Find(args)
			switch {
			case err == nil && len(rest) == 0 && !about.Hidden: // hidden ones only explain what to use instead
				if err := about.Help(); err != nil || len(args) > 0 {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "\nPages of the manual, for atoll help TOPIC:\n%s", wrapWords(slices.Sorted(maps.Keys(topics)), 76))
				return err
			case len(args) == 1 && topics[args[0]] != "":
				text, err := fs.ReadFile(docs.Pages, topics[args[0]])
				if err != nil {
					return err
				}
				_, err = io.WriteString(cmd.OutOrStdout(), renderPlain(string(text)))
				return err
			}
			known := slices.Collect(maps.Keys(topics))
			for _, c := range cmd.Root().Commands() {
				known = append(known, c.Name())
			}
			slices.Sort(known)
			if near := config.Nearest(strings.Join(args, " "), known); near != "" {
				return usageErrorf("unknown command or topic %q: did you mean %s?", strings.Join(args, " "), near)
			}
			return usageErrorf("unknown command or topic %q: atoll help lists the known ones", strings.Join(args, " "))
		},
	}
}

// listTopics returns the paths of the pages of the manual, by topic. No topic has the name of a command.
func listTopics() map[string]string {
	topics := map[string]string{}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		files, _ := fs.Glob(docs.Pages, pattern) // the pattern is valid
		for _, file := range files {
			topic := strings.TrimSuffix(path.Base(file), ".md")
			switch file {
			case "index.md":
				continue
			case "provider.md":
				topic = "plugins"
			case "providers/index.md":
				topic = "providers"
			}
			topics[topic] = file
		}
	}
	return topics
}

// completeHelp completes commands, and topics as the first argument.
func completeHelp(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names, directive := completeCommands(cmd, args, typed)
	if len(args) == 0 {
		names = append(names, slices.Sorted(maps.Keys(listTopics()))...)
	}
	return names, directive
}

// wrapWords returns words in indented lines of at most width bytes.
func wrapWords(words []string, width int) string {
	var b strings.Builder
	line := " "
	for _, w := range words {
		if len(line)+1+len(w) > width {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + w
	}
	return b.String() + line + "\n"
}

var (
	pageImage   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`) })
	pageLink    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`) })
	pageHeading = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^#+ +`) })
	pageRule    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\|( -+ \|)+$`) })
)

// renderPlain returns a page as text for a terminal: code is indented, and links have no targets.
func renderPlain(page string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			code = !code
			continue
		case code:
			line = strings.TrimRight("    "+line, " ")
		case pageRule().MatchString(line), strings.HasPrefix(line, "<!--"):
			continue
		case pageHeading().MatchString(line):
			line = strings.ToUpper(pageHeading().ReplaceAllString(line, ""))
		default:
			line = pageLink().ReplaceAllString(pageImage().ReplaceAllString(line, ""), "$1")
			line = strings.ReplaceAll(line, "**", "")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
