package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// gitSettings prevent the repository and the user's configuration from running other programs on
// this machine, except those that git needs to reach the repository.
var gitSettings = []string{
	"-c", "core.hooksPath=" + os.DevNull,
	"-c", "core.fsmonitor=false",
	"-c", "core.logAllRefUpdates=false", // the log would contain the local user's name and email
	"-c", "http.followRedirects=false",
	"-c", "transfer.bundleURI=false",
	"-c", "fetch.uriProtocols=",
	"-c", "submodule.recurse=false",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
}

// repositoryVars are the environment variables that point git to a repository.
var repositoryVars = map[string]bool{
	"GIT_ALTERNATE_OBJECT_DIRECTORIES": true, "GIT_COMMON_DIR": true, "GIT_CONFIG": true, "GIT_CONFIG_COUNT": true,
	"GIT_CONFIG_PARAMETERS": true, "GIT_DIR": true, "GIT_GRAFT_FILE": true, "GIT_IMPLICIT_WORK_TREE": true, "GIT_INDEX_FILE": true,
	"GIT_NAMESPACE": true, "GIT_OBJECT_DIRECTORY": true, "GIT_PREFIX": true, "GIT_REPLACE_REF_BASE": true,
	"GIT_SHALLOW_FILE": true, "GIT_WORK_TREE": true,
}

// gitCommand returns a non-interactive git command. When ctx ends, the command and all its
// descendants are killed.
func gitCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append(gitSettings[:len(gitSettings):len(gitSettings)], args...)...)
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !repositoryVars[name] {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env,
		"LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "SSH_ASKPASS_REQUIRE=never", "GCM_INTERACTIVE=never",
		"GIT_ALLOW_PROTOCOL=file:git:http:https:ssh", "GIT_NO_REPLACE_OBJECTS=1",
	)
	cmd.WaitDelay = 2 * time.Second
	isolateCommand(cmd)
	return cmd
}

// runGit runs cmd and reports its progress. Its error contains the messages of git.
func runGit(cmd *exec.Cmd, progress func(string)) error {
	l := &outputParser{progress: progress}
	cmd.Stderr = l
	defer killWithParent(cmd)()
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return newError(atoll.ErrUnavailable, "git not found; install git on the machine that stores the workspaces")
	case err != nil:
		l.endLine()
		return explainFailure(l.message, err)
	}
	return nil
}

// newError returns an error without an operation, which callers add.
func newError(kind atoll.Kind, format string, args ...any) error {
	return &atoll.Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// An outputParser splits the output of git into progress and messages. It drops unprintable
// characters, because the output may come from a hostile server and end up on a terminal.
type outputParser struct {
	progress func(string) // may be nil
	line     []byte
	message  string // the last lines that are not progress
}

// maxMessage is the maximum length of the message, and of one line, in bytes.
const maxMessage = 2000

// progressLine matches a line of git's progress.
var progressLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(remote: )?[A-Z][a-z]+ [a-z]+: +[0-9]+`) })

func (l *outputParser) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c == '\r' || c == '\n': // git ends a line of progress with a carriage return
			l.endLine()
		case len(l.line) < maxMessage:
			l.line = append(l.line, c)
		}
	}
	return len(b), nil
}

// endLine handles a complete line.
func (l *outputParser) endLine() {
	line := strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, string(l.line)))
	l.line = l.line[:0]
	switch {
	case line == "", strings.HasPrefix(line, "Cloning into "):
	case progressLine().MatchString(line):
		if l.progress != nil {
			l.progress(strings.TrimPrefix(line, "remote: "))
		}
	default:
		l.message = strings.TrimPrefix(l.message+"; "+line, "; ")
		l.message = strings.ToValidUTF8(l.message[max(0, len(l.message)-maxMessage):], "")
	}
}

// credentialPattern matches credentials in URLs, which the user's git configuration may add.
var credentialPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`://[^/@\s']+@`) })

// gitFailures maps parts of git's messages to kinds. The first match applies.
var gitFailures = []struct {
	kind atoll.Kind
	text []string
}{
	{atoll.ErrDenied, []string{
		"Authentication failed", "could not read Username", "could not read Password", "Permission denied", "terminal prompts disabled",
		"returned error: 401", "returned error: 403", "Host key verification failed", "dubious ownership",
	}},
	{atoll.ErrNotExist, []string{
		"does not exist", "not found", "does not appear to be a git repository", "no such", "not a git repository",
	}},
	{atoll.ErrExhausted, []string{"No space left", "Out of diskspace", "Disk quota exceeded"}},
	{atoll.ErrInvalid, []string{"invalid path", "fsck"}},
}

// explainFailure returns an error for the messages of git, with the kind that gitFailures gives.
func explainFailure(said string, err error) error {
	said = credentialPattern().ReplaceAllString(said, "://")
	for _, s := range gitFailures {
		for _, text := range s.text {
			if strings.Contains(said, text) {
				return newError(s.kind, "git: %s", said)
			}
		}
	}
	if said == "" {
		said = err.Error()
	}
	return newError(atoll.ErrUnavailable, "git: %s", said)
}

// fetchSource clones the source of the workspace into dir, within the limits of the Options. It
// returns the current commit.
func (s *store) fetchSource(ctx context.Context, k *record, dir string, progress func(string)) (commit string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(s.Timeout, func() {
		cancel(newError(atoll.ErrTimeout, "clone took longer than %s", s.Timeout))
	})
	defer timer.Stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watchSize(ctx, dir, cancel)
	}()
	defer func() { <-watched }()
	defer cancel(nil)
	commit, err = k.cloneInto(ctx, dir, s.Limit, progress)
	if cause := context.Cause(ctx); cause != nil {
		return "", cause
	}
	if err == nil {
		err = s.checkSize(dir)
	}
	return commit, err
}

// watchSize cancels a clone that becomes too large.
func (s *store) watchSize(ctx context.Context, dir string, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.checkSize(dir); err != nil {
			cancel(err)
		}
	}
}

// checkSize returns an error if the clone in dir is too large.
func (s *store) checkSize(dir string) error {
	if sizeOf(dir) > s.Limit {
		return newError(atoll.ErrExhausted, "clone is larger than %s", s.Limit)
	}
	return nil
}

func sizeOf(dir string) (size atoll.Bytes) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // dir changes during the walk
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += atoll.Bytes(info.Size())
		}
		return nil
	})
	return size
}

// fullCommit matches a full commit id, which is not a branch.
var fullCommit = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`) })

// cloneInto clones into dir without a check-out, and sets HEAD and the index as a check-out
// would. The check-out may not be larger than limit.
func (k *record) cloneInto(ctx context.Context, dir string, limit atoll.Bytes, progress func(string)) (commit string, err error) {
	args := []string{"clone", "--no-checkout", "--no-local", "--template=", "--progress", "--origin=origin"}
	exact := fullCommit().MatchString(k.Revision)
	if k.Revision != "" && !exact {
		args = append(args, "--branch="+k.Revision)
	}
	if k.Clone != "" {
		args = append(args, "--reference-if-able="+filepath.Join(k.dir, k.Clone), "--dissociate")
	}
	if err := runGit(gitCommand(ctx, append(args, "--", k.Source, dir)...), progress); err != nil {
		return "", k.explainRevision(err)
	}
	gitDir := filepath.Join(dir, ".git")
	if exact {
		if !hasCommit(ctx, gitDir, k.Revision) {
			return "", noCommit(k.Revision)
		}
		if _, err := gitOutput(gitCommand(ctx, "--git-dir="+gitDir, "update-ref", "--no-deref", "HEAD", k.Revision)); err != nil {
			return "", err
		}
	}
	if commit, err = gitOutput(gitCommand(ctx, "--git-dir="+gitDir, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")); err != nil {
		return "", newError(atoll.ErrInvalid, "the repository has no commit at HEAD; make one, or set a revision")
	}
	if err := checkTreeSize(ctx, gitDir, commit, limit); err != nil {
		return "", err
	}
	_, err = gitOutput(gitCommand(ctx, "--git-dir="+gitDir, "read-tree", commit))
	return commit, err
}

// checkTreeSize returns an error if a check-out of the commit would be larger than limit. The
// trees of a small repository can list a file many times, and git reads all the names into
// memory.
func checkTreeSize(ctx context.Context, gitDir, commit string, limit atoll.Bytes) error {
	cmd := gitCommand(ctx, "--git-dir="+gitDir, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	s := &sizeCounter{left: int64(limit)}
	cmd.Stdout = s
	err := runGit(cmd, nil)
	if s.left < 0 {
		return newError(atoll.ErrExhausted, "check-out of the commit is larger than %s", limit)
	}
	return err
}

// A sizeCounter parses the output of ls-tree -l -z. Its Write fails when the files exceed left.
type sizeCounter struct {
	left   int64  // bytes
	head   []byte // of an entry: the fields before the name, with the size last
	inName bool
}

// minFileSize is the least size that a file counts for: about one disk block, and some memory in
// git.
const minFileSize = 4 << 10

func (s *sizeCounter) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c == 0:
			size, _ := strconv.ParseInt(string(s.head[bytes.LastIndexByte(s.head, ' ')+1:]), 10, 64) // 0 for a submodule
			if s.left -= max(size, minFileSize); s.left < 0 {
				return 0, errTooLarge
			}
			s.head, s.inName = s.head[:0], false
		case c == '\t':
			s.inName = true
		case !s.inName:
			s.head = append(s.head, c)
		}
	}
	return len(b), nil
}

var errTooLarge = errors.New("too large")

// explainRevision replaces git's error about a missing branch by a clearer one.
func (k *record) explainRevision(err error) error {
	if strings.Contains(err.Error(), "Remote branch "+k.Revision+" not found") {
		return newError(atoll.ErrNotExist, "no branch or tag %q; for a commit use its full id", k.Revision)
	}
	return err
}

func noCommit(id string) error {
	return newError(atoll.ErrNotExist, "commit %s not found in any branch or tag", id)
}

// hasCommit reports whether the repository has the commit.
func hasCommit(ctx context.Context, gitDir, commit string) bool {
	_, err := gitOutput(gitCommand(ctx, "--git-dir="+gitDir, "cat-file", "-e", commit+"^{commit}"))
	return err == nil
}

// gitOutput runs cmd and returns its stdout without the final newline.
func gitOutput(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	err := runGit(cmd, nil)
	return strings.TrimSuffix(out.String(), "\n"), err
}

// resolveCommit returns the commit for a sandbox that asks for wanted, where "" means the current
// commit of the workspace. Kinds: ErrNotExist, ErrExhausted.
func (k *record) resolveCommit(ctx context.Context, wanted string, limit atoll.Bytes) (string, error) {
	if wanted == "" || wanted == k.Commit {
		return k.Commit, nil
	}
	if !hasCommit(ctx, k.gitDir(), wanted) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		return "", noCommit(wanted)
	}
	return wanted, checkTreeSize(ctx, k.gitDir(), wanted, limit)
}

func (k *record) gitDir() string { return filepath.Join(k.dir, k.Clone) }
