package agentgit

import (
	"bufio"
	"context"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// BundleScript is a script for sh in the directory of the agent's files, with the base commit as $1. It writes a bundle with the commits
// since then, and with one more for what no commit has. If there is nothing, it writes nothing.
const BundleScript = `set -e
export GIT_INDEX_FILE="$(mktemp)" GIT_OPTIONAL_LOCKS=0
trap 'rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"' EXIT
git -c core.hooksPath=/dev/null read-tree HEAD
git -c core.hooksPath=/dev/null -c core.fsmonitor=false add -A >/dev/null 2>&1
tree="$(git write-tree)"
commit="$(git rev-parse HEAD)"
if [ "$tree" != "$(git rev-parse 'HEAD^{tree}')" ]; then
	export GIT_AUTHOR_NAME="${GIT_AUTHOR_NAME:-agent}" GIT_AUTHOR_EMAIL="${GIT_AUTHOR_EMAIL:-agent@localhost}"
	export GIT_COMMITTER_NAME="${GIT_COMMITTER_NAME:-$GIT_AUTHOR_NAME}" GIT_COMMITTER_EMAIL="${GIT_COMMITTER_EMAIL:-$GIT_AUTHOR_EMAIL}"
	commit="$(git commit-tree -p "$commit" -m 'Changes without a commit' "$tree")"
fi
[ "$commit" = "$1" ] && exit 0
git update-ref refs/atoll/work "$commit"
git bundle create --quiet - refs/atoll/work "^$1"
`

// maxBundle is the size in bytes of the largest bundle.
const maxBundle = 2 << 30

// Import takes the work of an agent, which began at base, from a bundle into the repository, and returns its last commit: base if the bundle is
// empty. The bundle may be hostile. Kinds: ErrInvalid (it is no bundle, or its objects are not valid), ErrExhausted (it is larger than 2 GiB).
func (r *Repo) Import(ctx context.Context, name, base string, bundle io.Reader) (commit string, err error) {
	in := bufio.NewReader(bundle)
	if _, err := in.Peek(1); err == io.EOF {
		return base, nil
	}
	if commit, err = readTip(in); err != nil {
		return "", err
	}
	// git fetch does not check what is in a bundle (before 2.46).
	pack := &io.LimitedReader{R: in, N: maxBundle + 1}
	_, err = command{dir: r.Dir, args: []string{"index-pack", "--stdin", "--fix-thin", "--strict"}, stdin: pack}.runGit(ctx)
	if pack.N <= 0 {
		return "", newError(atoll.ErrExhausted, "the work of the agent is larger than %s", atoll.Bytes(maxBundle))
	}
	if err != nil {
		return "", newError(atoll.ErrInvalid, "the work of the agent is not valid: %w", err)
	}
	if _, err := r.runGit(ctx, "merge-base", "--is-ancestor", base, commit); err != nil {
		return "", newError(atoll.ErrInvalid, "the work of the agent does not follow from commit %.12s, with which it began", base)
	}
	if _, err := r.runGit(ctx, "rev-list", "--objects", "--quiet", commit, "--not", base); err != nil {
		return "", newError(atoll.ErrInvalid, "the work of the agent is not complete: %w", err)
	}
	_, err = r.runGit(ctx, "update-ref", refOf(name), commit)
	return commit, err
}

// tipLine matches the line of a bundle that names its last commit.
var tipLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64}) refs/atoll/work$`) })

// maxLines is the number of lines of the head of a bundle.
const maxLines = 1000

// readTip reads the head of a bundle, and returns its only reference, which must be that of BundleScript.
func readTip(in *bufio.Reader) (commit string, err error) {
	for n := range maxLines {
		line, err := in.ReadSlice('\n')
		if err != nil {
			break
		}
		text := strings.TrimSuffix(string(line), "\n")
		m := tipLine().FindStringSubmatch(text)
		switch {
		case n == 0 && !strings.HasPrefix(text, "# v"):
			return "", newError(atoll.ErrInvalid, "the work of the agent is not a bundle of git")
		case n > 0 && text == "" && commit != "":
			return commit, nil
		case m != nil && commit == "":
			commit = m[1]
		case n > 0 && !strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "@"):
			return "", newError(atoll.ErrInvalid, "the bundle of the agent has other references")
		}
	}
	return "", newError(atoll.ErrInvalid, "the work of the agent is not a bundle of git")
}

// Describe returns the subjects of the commits since base, the oldest first, and the numbers of files and lines that changed.
func (r *Repo) Describe(ctx context.Context, base, commit string) (subjects []string, stat string, err error) {
	log, err := r.runGit(ctx, "log", "--reverse", "--no-show-signature", "--format=%s", base+".."+commit)
	if err != nil {
		return nil, "", err
	}
	if log != "" {
		subjects = strings.Split(log, "\n")
	}
	stat, err = r.runGit(ctx, append([]string{"diff"}, append(diffArgs, "--shortstat", base, commit)...)...)
	return subjects, strings.TrimSpace(stat), err
}

// diffArgs let git diff run no other program.
var diffArgs = []string{"--no-ext-diff", "--no-textconv", "--ignore-submodules=none", "--submodule=short", "--no-color-moved"}

// Diff writes the changes between base and commit, or with stat their numbers for each file. The text is the agent's: a terminal must not
// get it as it is.
func (r *Repo) Diff(ctx context.Context, base, commit string, stat bool, w io.Writer) error {
	args := append([]string{"--no-pager", "diff", "--color=never"}, diffArgs...)
	if stat {
		args = append(args, "--stat=100")
	}
	_, err := command{dir: r.Dir, args: append(args, base, commit), out: w}.runGit(ctx)
	return err
}

// FindWork returns the last commit of an agent that Import brought into the repository, or the base if there is none.
func (r *Repo) FindWork(ctx context.Context, w *Work) (commit string, err error) {
	commit, err = r.runGit(ctx, "rev-parse", "--verify", "--quiet", refOf(w.Name)+"^{commit}")
	if err != nil && ctx.Err() == nil {
		return w.Base, nil
	}
	return commit, err
}
