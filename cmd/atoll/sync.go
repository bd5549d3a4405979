//go:build !client

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
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/printable"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

func newSync(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Store versions of directories in object storage, and restore them",
		Long: `Sync stores versions of a directory, of this machine or of a sandbox, in object
storage. A directory in a sandbox is written SANDBOX:PATH, as for cp. The place of
versions is written s3://BUCKET/PREFIX or file:///DIRECTORY; the default is
sync.store.

The file .sandbox-state in the directory records the last push or pull, and
.atollignore, in the syntax of .gitignore, lists files that are not pushed. The
service, its region and its keys are those of AWS's own tools, or of sync in the
configuration.`,
	}
	cmd.AddCommand(newSyncStatus(a), newSyncPush(a), newSyncPull(a), newSyncVersions(a), newSyncRestore(a), newSyncPrune(a))
	return cmd
}

// A syncTarget has a directory and the place of its versions.
type syncTarget struct {
	tree   filesync.Tree
	remote *filesync.Remote
	setID  bool // a directory on this machine gets set-user-ID and set-group-ID bits
}

// A syncSource names a directory and the place of its versions.
type syncSource struct {
	dir   string // "" is none
	store string // "" is the configured one
	make  bool   // create a missing directory on this machine
	setID bool   // let a directory on this machine have set-user-ID and set-group-ID bits
}

// withVersions calls f with the place of versions, and the directory if there is one.
func (a *app) withVersions(cmd *cobra.Command, from syncSource, f func(ctx context.Context, s *syncTarget) error) error {
	b, err := a.loadBuilder()
	if err != nil {
		return err
	}
	ctx, stop := interruptContext(cmd.Context()) // so that a lock is released
	defer stop()
	dir, s := from.dir, &syncTarget{setID: from.setID}
	remote, end, err := b.OpenStore(ctx, from.store, a.newNoteLogger(b.Config))
	if err != nil {
		return err
	}
	defer end()
	s.remote = remote
	switch {
	case dir == "":
		return preferSignal(ctx, f(ctx, s))
	case isInside(dir):
		return a.withConnection(cmd, func(ctx context.Context, c *connection) error { return a.withDir(ctx, c, dir, s, f) })
	case from.make:
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return preferSignal(ctx, a.withDir(ctx, nil, dir, s, f))
}

// withDir calls f with a directory, which is on this machine if c is nil.
func (a *app) withDir(ctx context.Context, c *connection, dir string, s *syncTarget, f func(ctx context.Context, s *syncTarget) error) error {
	p, err := a.openLocationWith(ctx, c, dir, dirfs.Options{UID: -1, GID: -1, SetID: s.setID})
	if err != nil {
		return err
	}
	defer p.closeFS()
	switch {
	case p.isDir():
	case p.info != nil:
		return atoll.Errorf("sync", "", atoll.ErrInvalid, "%s: not a directory: name its parent directory", dir)
	default:
		return atoll.Errorf("sync", "", atoll.ErrNotExist, "%s: no such directory", dir)
	}
	s.tree = filesync.Tree{FS: p.fs, Dir: p.name}
	return f(ctx, s)
}

// showTransfer runs do and shows its progress.
func (a *app) showTransfer(verb string, quiet bool, do func(progress func(filesync.Progress)) (*filesync.Stats, error)) (*filesync.Stats, error) {
	show, end := a.startProgress(quiet)
	defer end()
	if show == nil {
		return do(nil)
	}
	return do(func(p filesync.Progress) {
		show(atoll.Progress{Phase: verb, Done: p.Bytes, Total: p.TotalBytes})
	})
}

// pullVersion pulls a version with a progress bar, and prints statistics.
func (a *app) pullVersion(ctx context.Context, s *syncTarget, o filesync.PullOptions, quiet, asJSON bool) error {
	st, err := a.showTransfer("pull", quiet, func(progress func(filesync.Progress)) (*filesync.Stats, error) {
		o.Progress = progress
		return s.remote.Pull(ctx, s.tree, o)
	})
	switch {
	case err != nil:
	case st.Fresh:
		a.printMessage("the last push or pull is no older than sync.stale_threshold: nothing was pulled")
	case st.Version == 0:
		err = notThere("", "no version at %s: nothing was pulled", s.remote)
	}
	return a.printStats(st, err, asJSON)
}

// requireVersion returns an error if there is no version at all.
func (s *syncTarget) requireVersion(ctx context.Context) error {
	for _, err := range s.remote.Versions(ctx) {
		return err
	}
	return notThere("", "no version at %s", s.remote)
}

// isInside reports whether a path is in a sandbox.
func isInside(arg string) bool {
	ref, _, colon := strings.Cut(arg, ":")
	return colon && ref != "" && !strings.ContainsAny(ref, `/\.`) && filepath.VolumeName(arg) == ""
}

// optionalArg returns argument i, or "" if it is missing.
func optionalArg(args []string, i int) string {
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
		Short: "Push a directory as the latest version",
		Long: `Push stores the contents of a directory as the latest version, and prints its
number. It uploads changed files only. If nothing has changed, the latest version
remains. Unreadable files are reported, and remain as in the version before; the
exit code is then 1.`,
		Example: `  atoll sync push . s3://my-bucket/agents/one
  atoll sync push web:/work file:///mnt/backup/web`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVersions(cmd, syncSource{dir: args[0], store: optionalArg(args, 1)}, func(ctx context.Context, s *syncTarget) error {
				st, err := a.showTransfer("push", quiet, func(progress func(filesync.Progress)) (*filesync.Stats, error) {
					o.Progress = progress
					return s.remote.Push(ctx, s.tree, o)
				})
				return a.printStats(st, err, asJSON)
			})
		},
	}
	cmd.Flags().StringArrayVar(&o.Ignore, "ignore", nil, "leave out files that match a `pattern`, as in .atollignore; can be repeated")
	cmd.Flags().BoolVar(&o.Full, "full", false, "read every file, even if its size and time have not changed")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return cmd
}

func newSyncPull(a *app) *cobra.Command {
	var o filesync.PullOptions
	var remote, stale, quiet, asJSON bool
	cmd := &cobra.Command{
		Use:   "pull [flags] DIRECTORY [STORE]",
		Short: "Update a directory to the latest version",
		Long: `Pull updates a directory to the latest version. Files that were changed here since
the last push or pull remain as they are; if they have changed in the version, too,
they are reported until a push, which makes yours the latest, or a pull --overwrite.
Files that were never pushed or pulled are never removed. Files that cannot be written
are reported; the exit code is then 1, as it is if there is no version.

On this machine, a pull leaves set-user-ID and set-group-ID bits out, unless you give
--set-id: a sandbox may have written the files. A push from there retains the bits.`,
		Example: `  atoll sync pull . s3://my-bucket/agents/one`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				o.Conflicts = filesync.KeepRemote
			}
			if stale {
				cfg, err := a.loadConfig()
				if err != nil {
					return err
				}
				o.IfStale = time.Duration(cfg.Sync.Stale)
			}
			return a.withVersions(cmd, syncSource{dir: args[0], store: optionalArg(args, 1), make: true, setID: o.SetID}, func(ctx context.Context, s *syncTarget) error {
				return a.pullVersion(ctx, s, o, quiet, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&remote, "overwrite", false, "use the version's file if both sides have changed it")
	cmd.Flags().BoolVar(&o.SetID, "set-id", false, "set set-user-ID and set-group-ID bits: only if you trust all programs that push")
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
		Short: "Restore a directory to an older version",
		Long: `Restore changes a directory to an older version, as pull does to the latest one. A
push after that makes it the latest version. Files that cannot be written are reported;
the exit code is then 1.`,
		Example: `  atoll sync versions s3://my-bucket/agents/one
  atoll sync restore . 1704067200 s3://my-bucket/agents/one`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			version, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || version < 1 {
				return usageErrorf("%q is not a version: atoll sync versions lists the versions", args[1])
			}
			if o.Version = version; remote {
				o.Conflicts = filesync.KeepRemote
			}
			return a.withVersions(cmd, syncSource{dir: args[0], store: optionalArg(args, 2), make: true, setID: o.SetID}, func(ctx context.Context, s *syncTarget) error {
				return a.pullVersion(ctx, s, o, quiet, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&remote, "overwrite", false, "use the version's file if both sides have changed it")
	cmd.Flags().BoolVar(&o.SetID, "set-id", false, "set set-user-ID and set-group-ID bits: only if you trust all programs that push")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return cmd
}

// listPaths returns the first paths, and how many others there are.
func listPaths(p filesync.Paths) string {
	const most = 3
	var names []string
	for _, path := range p.Paths[:min(most, len(p.Paths))] {
		names = append(names, printable.Escape(path, ""))
	}
	if more := p.Count - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// exitIncomplete is the exit code of a push or pull that has left out some files.
const exitIncomplete = 1

// printStats prints the version on stdout, and conflicts and errors on stderr. If files were left out, it returns
// exitIncomplete.
func (a *app) printStats(st *filesync.Stats, err error, asJSON bool) error {
	if st == nil {
		return err
	}
	if st.Replaced > 0 {
		a.printMessage("version %d was never pulled here, and version %d does not have its changes: restore gets them", st.Replaced, st.Version)
	}
	for _, c := range st.Conflicts {
		a.printMessage("%s: changed on both sides; the %s file wins", printable.Escape(c.Path, ""), c.Kept)
	}
	if n := st.Dropped.Count; n > 0 {
		a.printMessage("set-user-ID and set-group-ID bits were not set here, and remain in the versions: %s (--set-id sets them)", listPaths(st.Dropped))
	}
	for _, text := range st.Errors {
		a.printMessage("%s", printable.Escape(text, ""))
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
		a.printMessage("files left out: %d", st.Failed)
		return exitError(exitIncomplete)
	}
	return err
}

func newSyncStatus(a *app) *cobra.Command {
	var ignore []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [flags] DIRECTORY [STORE]",
		Short: "Show changes in a directory since the last push or pull",
		Long: `Status shows which files were added (A), modified (M) or deleted (D) in a directory
since the last push or pull, which of them the version has otherwise (C), which ones a
pull could not write or remove (!), and whether there is a newer version. It reads
files only if their size and times cannot tell.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVersions(cmd, syncSource{dir: args[0], store: optionalArg(args, 1)}, func(ctx context.Context, s *syncTarget) error {
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
	cmd.Flags().StringArrayVar(&ignore, "ignore", nil, "leave out files that match a `pattern`, as push does; can be repeated")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) printSyncStatus(st *filesync.Status) error {
	switch {
	case st.Latest == 0:
		a.printMessage("there is no version yet")
	case st.Behind:
		a.printMessage("version %d is newer than this directory: run atoll sync pull", st.Latest)
	default:
		a.printMessage("version %d is the latest, and was pushed or pulled here", st.Latest)
	}
	var lines []string
	for letter, paths := range map[string]filesync.Paths{"A": st.Added, "M": st.Changed, "D": st.Removed, "C": st.Conflicts, "!": st.Pending, "?": st.Unread} {
		for _, p := range paths.Paths {
			lines = append(lines, letter+" "+printable.Escape(p, ""))
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
	var l listFlags
	cmd := &cobra.Command{
		Use:   "versions [flags] [STORE]",
		Short: "List versions, oldest first",
		Long: `Versions lists the versions of a place. Directories that other programs wrote as
PLACE/SECONDS/ with a .sandbox-state are versions, too. If there are newer ones of other
programs, set sync.layout to files: then pull looks for them.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVersions(cmd, syncSource{store: optionalArg(args, 0)}, func(ctx context.Context, s *syncTarget) error {
				var all []filesync.Info
				for v, err := range s.remote.Versions(ctx) {
					if err != nil {
						return err
					}
					all = append(all, v)
				}
				if len(all) == 0 {
					a.printMessage("no version at %s", s.remote)
				}
				return printList(a, l, all, func(v filesync.Info) string { return strconv.FormatInt(v.Version, 10) },
					[]string{"VERSION", "PUSHED", "LATEST"},
					func(v filesync.Info) []string {
						return []string{strconv.FormatInt(v.Version, 10), formatAgo(time.Since(v.Pushed)), yesNo(v.Latest)}
					})
			})
		},
	}
	l.addFlags(cmd, "print numbers only")
	return cmd
}

func newSyncPrune(a *app) *cobra.Command {
	var keep filesync.Keep
	var within atoll.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "prune [flags] [STORE]",
		Short: "Remove old versions, and leftovers of pushes",
		Long: `Prune removes the versions that no flag keeps, but never the latest one, and files
that no version needs any more. Without a flag all versions remain.`,
		Example: `  atoll sync prune --keep 10 --keep-within 30d s3://my-bucket/agents/one`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			keep.Within = time.Duration(within)
			return a.withVersions(cmd, syncSource{store: optionalArg(args, 0)}, func(ctx context.Context, s *syncTarget) error {
				p, err := s.remote.Prune(ctx, keep)
				if err != nil {
					return err
				}
				if len(p.Versions) == 0 {
					if err := s.requireVersion(ctx); err != nil {
						return err
					}
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
	cmd.Flags().IntVar(&keep.Last, "keep", 0, "`number` of versions to keep, the newest ones")
	cmd.Flags().TextVar(&within, "keep-within", atoll.Duration(0), "keep versions that are not older than this, like 30d")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
