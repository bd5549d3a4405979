package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

func newSync(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Keep versions of directories in object storage, and get them back",
		Long: `Sync keeps versions of a directory, of this machine or of a sandbox, in object
storage. A directory in a sandbox is written SANDBOX:PATH, as for cp. Where versions
are is written s3://BUCKET/PREFIX or file:///DIRECTORY; without, it is sync.store.

The file .sandbox-state in the directory says what was pushed or pulled last, and
.atollignore, in the syntax of .gitignore, what is not pushed. The service, its
region and its keys are those of AWS's own tools, or of sync in the configuration.`,
	}
	cmd.AddCommand(newSyncStatus(a), newSyncPush(a), newSyncPull(a), newSyncVersions(a), newSyncRestore(a), newSyncPrune(a))
	return cmd
}

// A synced is what commands about versions work with.
type synced struct {
	tree   filesync.Tree
	remote *filesync.Remote
}

// withVersions calls f with the versions at a place, and a directory unless dir is "".
// One of this machine is made if it is to be.
func (a *app) withVersions(cmd *cobra.Command, dir, at string, make bool, f func(ctx context.Context, s *synced) error) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context()) // so that a lock is given up
	defer stop()
	s := &synced{}
	remote, end, err := cfg.OpenStore(ctx, at, a.notes(cfg))
	if err != nil {
		return err
	}
	defer end()
	s.remote = remote
	switch {
	case dir == "":
		return interrupted(ctx, f(ctx, s))
	case isInside(dir):
		return a.with(cmd, func(ctx context.Context, c *connection) error { return a.withDir(ctx, c, dir, s, f) })
	case make:
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return interrupted(ctx, a.withDir(ctx, nil, dir, s, f))
}

// withDir calls f with a directory, of this machine when there is no connection.
func (a *app) withDir(ctx context.Context, c *connection, dir string, s *synced, f func(ctx context.Context, s *synced) error) error {
	p, err := a.place(ctx, c, dir)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case p.isDir():
	case p.info != nil:
		return atoll.Errorf("sync", "", atoll.ErrInvalid, "%s: not a directory: name the one that it is in", dir)
	default:
		return atoll.Errorf("sync", "", atoll.ErrNotExist, "%s: no such directory", dir)
	}
	s.tree = filesync.Tree{FS: p.fs, Dir: p.name}
	return f(ctx, s)
}

// transfer shows people how far a push or a pull is.
func (a *app) transfer(verb string, quiet bool, do func(progress func(filesync.Progress)) (*filesync.Stats, error)) (*filesync.Stats, error) {
	if quiet || !isTerminal(a.stderr) {
		return do(nil)
	}
	bar := &progressBar{app: a}
	defer bar.clear()
	return do(func(p filesync.Progress) {
		bar.show(atoll.Progress{Phase: verb, Done: p.Bytes, Total: p.TotalBytes})
	})
}

// pull is Pull, with what people see of it.
func (a *app) pull(ctx context.Context, s *synced, o filesync.PullOptions, quiet, asJSON bool) error {
	st, err := a.transfer("pull", quiet, func(progress func(filesync.Progress)) (*filesync.Stats, error) {
		o.Progress = progress
		return s.remote.Pull(ctx, s.tree, o)
	})
	return a.printStats(st, err, asJSON)
}

// isInside reports whether a place is in a sandbox.
func isInside(arg string) bool {
	ref, _, colon := strings.Cut(arg, ":")
	return colon && ref != "" && !strings.ContainsAny(ref, `/\.`) && filepath.VolumeName(arg) == ""
}

// arg is an argument that may be left out.
func arg(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

func newSyncPush(a *app) *cobra.Command {
	var o filesync.PushOptions
	var quiet, asJSON bool
	cmd := &cobra.Command{
		Use:   "push [flags] DIRECTORY [STORE]",
		Short: "Make what is in a directory the latest version",
		Long: `Push makes what is in a directory the latest version, and prints its number. Only
what has changed is uploaded. If nothing has, the latest version is what it was.
Files that cannot be read are told, and stay what they were; the exit code is 1 then.`,
		Example: `  atoll sync push . s3://my-bucket/agents/one
  atoll sync push web:/work file:///mnt/backup/web`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVersions(cmd, args[0], arg(args, 1), false, func(ctx context.Context, s *synced) error {
				st, err := a.transfer("push", quiet, func(progress func(filesync.Progress)) (*filesync.Stats, error) {
					o.Progress = progress
					return s.remote.Push(ctx, s.tree, o)
				})
				return a.printStats(st, err, asJSON)
			})
		},
	}
	cmd.Flags().StringArrayVar(&o.Ignore, "ignore", nil, "leave out what matches a `pattern`, as in .atollignore; again for more")
	cmd.Flags().BoolVar(&o.Full, "full", false, "read every file, also those whose size and time are what they were")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return cmd
}

func newSyncPull(a *app) *cobra.Command {
	var o filesync.PullOptions
	var remote, stale, quiet, asJSON bool
	cmd := &cobra.Command{
		Use:   "pull [flags] DIRECTORY [STORE]",
		Short: "Bring a directory to what the latest version holds",
		Long: `Pull brings a directory to what the latest version holds. Files that were changed
here since the last push or pull stay as they are; those that the version has
otherwise, too, are told. What was never pushed or pulled is never removed.`,
		Example: `  atoll sync pull . s3://my-bucket/agents/one`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				o.Conflicts = filesync.KeepRemote
			}
			if stale {
				cfg, err := a.config()
				if err != nil {
					return err
				}
				o.IfStale = time.Duration(cfg.Sync.Stale)
			}
			return a.withVersions(cmd, args[0], arg(args, 1), true, func(ctx context.Context, s *synced) error {
				return a.pull(ctx, s, o, quiet, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&remote, "overwrite", false, "take the version's file where both sides have changed it")
	cmd.Flags().BoolVar(&stale, "if-stale", false, "do nothing if the last push or pull is no older than sync.stale_threshold")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return cmd
}

func newSyncRestore(a *app) *cobra.Command {
	var o filesync.PullOptions
	var remote, quiet, asJSON bool
	cmd := &cobra.Command{
		Use:   "restore [flags] DIRECTORY VERSION [STORE]",
		Short: "Bring a directory to what a version held",
		Long: `Restore brings a directory to what a version held, as pull does to the latest one.
A push after that makes it the latest version.`,
		Example: `  atoll sync versions s3://my-bucket/agents/one
  atoll sync restore . 1704067200 s3://my-bucket/agents/one`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			version, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || version < 1 {
				return usagef("%q is no version: atoll sync versions lists them", args[1])
			}
			if o.Version = version; remote {
				o.Conflicts = filesync.KeepRemote
			}
			return a.withVersions(cmd, args[0], arg(args, 2), true, func(ctx context.Context, s *synced) error {
				return a.pull(ctx, s, o, quiet, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&remote, "overwrite", false, "take the version's file where both sides have changed it")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return cmd
}

// printStats prints the version, and tells the rest.
func (a *app) printStats(st *filesync.Stats, err error, asJSON bool) error {
	if st == nil {
		return err
	}
	if st.Replaced > 0 {
		a.say("version %d was never here: what it has otherwise, version %d has not, and restore brings it", st.Replaced, st.Version)
	}
	for _, c := range st.Conflicts {
		a.say("%s: changed on both sides; the %s one is kept", printable(c.Path, ""), c.Kept)
	}
	for _, text := range st.Errors {
		a.say("%s", printable(text, ""))
	}
	switch {
	case asJSON:
		if printErr := a.printJSON(st); printErr != nil {
			return printErr
		}
	case st.Version > 0:
		if _, printErr := fmt.Fprintln(a.stdout, st.Version); printErr != nil {
			return printErr
		}
	}
	if err == nil && st.Failed > 0 {
		return atoll.Errorf("sync", "", atoll.ErrUnavailable, "all is done but for %d files", st.Failed)
	}
	return err
}

func newSyncStatus(a *app) *cobra.Command {
	var ignore []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [flags] DIRECTORY [STORE]",
		Short: "Show what has changed in a directory since it was pushed or pulled",
		Long: `Status shows what was added (A), modified (M) or deleted (D) in a directory since it
was pushed or pulled last, judging by sizes and times, and whether there is a newer
version.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVersions(cmd, args[0], arg(args, 1), false, func(ctx context.Context, s *synced) error {
				st, err := s.remote.Status(ctx, s.tree, ignore...)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(st)
				}
				return a.printSyncStatus(st)
			})
		},
	}
	cmd.Flags().StringArrayVar(&ignore, "ignore", nil, "leave out what matches a `pattern`, as push does; again for more")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) printSyncStatus(st *filesync.Status) error {
	switch {
	case st.Latest == 0:
		a.say("there is no version yet")
	case st.Behind:
		a.say("version %d is newer than what is here: atoll sync pull brings it", st.Latest)
	default:
		a.say("version %d is the latest, and was pushed from here or pulled", st.Latest)
	}
	var lines []string
	for letter, paths := range map[string]filesync.Paths{"A": st.Added, "M": st.Changed, "D": st.Removed, "?": st.Unread} {
		for _, p := range paths.Paths {
			lines = append(lines, letter+" "+printable(p, ""))
		}
		if more := paths.Count - len(paths.Paths); more > 0 {
			lines = append(lines, fmt.Sprintf("%s and %d more", letter, more))
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		if _, err := fmt.Fprintln(a.stdout, line); err != nil {
			return err
		}
	}
	return nil
}

func newSyncVersions(a *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:   "versions [flags] [STORE]",
		Short: "List versions, the oldest first",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVersions(cmd, "", arg(args, 0), false, func(ctx context.Context, s *synced) error {
				var all []filesync.Info
				for v, err := range s.remote.Versions(ctx) {
					if err != nil {
						return err
					}
					all = append(all, v)
				}
				return printList(a, l, all, func(v filesync.Info) string { return strconv.FormatInt(v.Version, 10) },
					[]string{"VERSION", "PUSHED", "LATEST"},
					func(v filesync.Info) []string {
						return []string{strconv.FormatInt(v.Version, 10), ago(time.Since(v.Pushed)), yesNo(v.Latest)}
					})
			})
		},
	}
	l.register(cmd, "print numbers only")
	return cmd
}

func newSyncPrune(a *app) *cobra.Command {
	var keep filesync.Keep
	var within atoll.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "prune [flags] [STORE]",
		Short: "Remove versions that are not to be kept, and what pushes have left behind",
		Long: `Prune removes the versions that no flag keeps, but never the latest one, and what
no version needs any more. Without a flag all versions stay.`,
		Example: `  atoll sync prune --keep 10 --keep-within 720h s3://my-bucket/agents/one`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			keep.Within = time.Duration(within)
			return a.withVersions(cmd, "", arg(args, 0), false, func(ctx context.Context, s *synced) error {
				p, err := s.remote.Prune(ctx, keep)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(p)
				}
				for _, v := range p.Versions {
					if _, err := fmt.Fprintln(a.stdout, v); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&keep.Last, "keep", 0, "keep so many versions, the newest `ones`")
	cmd.Flags().TextVar(&within, "keep-within", atoll.Duration(0), "keep versions that are no older, like 720h")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
