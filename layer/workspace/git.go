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
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// gitSettings keep whatever a repository or the user's own configuration says
// from running anything here but what it takes to reach the repository.
var gitSettings = []string{
	"-c", "core.hooksPath=" + os.DevNull,
	"-c", "core.fsmonitor=false",
	"-c", "core.logAllRefUpdates=false", // with the name and the address of the user here
	"-c", "http.followRedirects=false",
	"-c", "transfer.bundleURI=false",
	"-c", "fetch.uriProtocols=",
	"-c", "submodule.recurse=false",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
}

// ofAnother are the variables that tell git of a repository, not of its user.
var ofAnother = map[string]bool{
	"GIT_ALTERNATE_OBJECT_DIRECTORIES": true, "GIT_COMMON_DIR": true, "GIT_CONFIG": true, "GIT_CONFIG_COUNT": true,
	"GIT_CONFIG_PARAMETERS": true, "GIT_DIR": true, "GIT_GRAFT_FILE": true, "GIT_IMPLICIT_WORK_TREE": true, "GIT_INDEX_FILE": true,
	"GIT_NAMESPACE": true, "GIT_OBJECT_DIRECTORY": true, "GIT_PREFIX": true, "GIT_REPLACE_REF_BASE": true,
	"GIT_SHALLOW_FILE": true, "GIT_WORK_TREE": true,
}

// git is a command of the git program that asks nobody anything. It ends with
// ctx, and all that it has started with it.
func git(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append(gitSettings[:len(gitSettings):len(gitSettings)], args...)...)
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !ofAnother[name] {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env,
		"LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "SSH_ASKPASS_REQUIRE=never", "GCM_INTERACTIVE=never",
		"GIT_ALLOW_PROTOCOL=file:git:http:https:ssh", "GIT_NO_REPLACE_OBJECTS=1",
	)
	cmd.WaitDelay = 2 * time.Second
	alone(cmd)
	return cmd
}

// run runs cmd, and tells of its progress. The error is what git says.
func run(cmd *exec.Cmd, progress func(string)) error {
	l := &listener{progress: progress}
	cmd.Stderr = l
	defer bound(cmd)()
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fail(atoll.ErrUnavailable, "there is no git program on the machine that keeps workspaces: install git")
	case err != nil:
		l.end()
		return explain(l.said, err)
	}
	return nil
}

// fail is an error that whoever knows what it is about wraps.
func fail(kind atoll.Kind, format string, args ...any) error {
	return &atoll.Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// A listener hears what git says, in lines. What is not text is left out: it may
// come from a stranger, and goes to a terminal.
type listener struct {
	progress func(string) // may be nil
	line     []byte
	said     string // the last of it that is not progress
}

// maxSaid is how much is kept of what git says, and of one line, in bytes.
const maxSaid = 2000

// progressLine is what git says of its progress.
var progressLine = regexp.MustCompile(`^(remote: )?[A-Z][a-z]+ [a-z]+: +[0-9]+`)

func (l *listener) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c == '\r' || c == '\n': // git begins a line anew to change it
			l.end()
		case len(l.line) < maxSaid:
			l.line = append(l.line, c)
		}
	}
	return len(b), nil
}

// end is that of a line.
func (l *listener) end() {
	line := strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, string(l.line)))
	l.line = l.line[:0]
	switch {
	case line == "", strings.HasPrefix(line, "Cloning into "):
	case progressLine.MatchString(line):
		if l.progress != nil {
			l.progress(strings.TrimPrefix(line, "remote: "))
		}
	default:
		l.said = strings.TrimPrefix(l.said+"; "+line, "; ")
		l.said = strings.ToValidUTF8(l.said[max(0, len(l.said)-maxSaid):], "")
	}
}

// secrets are in addresses that the user's configuration makes of others.
var secrets = regexp.MustCompile(`://[^/@\s']+@`)

// sayings are parts of what git says, and what they mean. The first one counts.
var sayings = []struct {
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

// explain makes an error of what git said.
func explain(said string, err error) error {
	said = secrets.ReplaceAllString(said, "://")
	for _, s := range sayings {
		for _, text := range s.text {
			if strings.Contains(said, text) {
				return fail(s.kind, "git: %s", said)
			}
		}
	}
	if said == "" {
		said = err.Error()
	}
	return fail(atoll.ErrUnavailable, "git: %s", said)
}

// fetch clones the workspace's source into dir, within its limits, and returns
// the commit that it stands at.
func (s *store) fetch(ctx context.Context, k *kept, dir string, progress func(string)) (commit string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(s.Timeout, func() {
		cancel(fail(atoll.ErrTimeout, "the clone was not done after %s", s.Timeout))
	})
	defer timer.Stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watchSize(ctx, dir, cancel)
	}()
	defer func() { <-watched }()
	defer cancel(nil)
	commit, err = k.fetch(ctx, dir, s.Limit, progress)
	if cause := context.Cause(ctx); cause != nil {
		return "", cause
	}
	if err == nil {
		err = s.fits(dir)
	}
	return commit, err
}

// watchSize ends a clone that becomes too large.
func (s *store) watchSize(ctx context.Context, dir string, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.fits(dir); err != nil {
			cancel(err)
		}
	}
}

// fits says that a clone is too large, if it is.
func (s *store) fits(dir string) error {
	if sizeOf(dir) > s.Limit {
		return fail(atoll.ErrExhausted, "the clone is larger than %s", s.Limit)
	}
	return nil
}

func sizeOf(dir string) (size atoll.Bytes) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it changes while we look
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += atoll.Bytes(info.Size())
		}
		return nil
	})
	return size
}

// fullCommit is a revision that can be no branch.
var fullCommit = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// fetch clones into dir without a check-out, and puts HEAD and the index where
// they would be after one, which is not to be larger than limit.
func (k *kept) fetch(ctx context.Context, dir string, limit atoll.Bytes, progress func(string)) (commit string, err error) {
	args := []string{"clone", "--no-checkout", "--no-local", "--template=", "--progress", "--origin=origin"}
	exact := fullCommit.MatchString(k.Revision)
	if k.Revision != "" && !exact {
		args = append(args, "--branch="+k.Revision)
	}
	if k.Clone != "" {
		args = append(args, "--reference-if-able="+filepath.Join(k.dir, k.Clone), "--dissociate")
	}
	if err := run(git(ctx, append(args, "--", k.Source, dir)...), progress); err != nil {
		return "", k.hint(err)
	}
	gitDir := filepath.Join(dir, ".git")
	if exact {
		if !has(ctx, gitDir, k.Revision) {
			return "", noCommit(k.Revision)
		}
		if _, err := output(git(ctx, "--git-dir="+gitDir, "update-ref", "--no-deref", "HEAD", k.Revision)); err != nil {
			return "", err
		}
	}
	if commit, err = output(git(ctx, "--git-dir="+gitDir, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")); err != nil {
		return "", fail(atoll.ErrInvalid, "the repository has no commit that HEAD names: make one, or name a revision")
	}
	if err := weigh(ctx, gitDir, commit, limit); err != nil {
		return "", err
	}
	_, err = output(git(ctx, "--git-dir="+gitDir, "read-tree", commit))
	return commit, err
}

// weigh says that a check-out of the commit is larger than limit, if it is: the
// trees of a small repository can name a file any number of times, and git reads
// all of the names into memory.
func weigh(ctx context.Context, gitDir, commit string, limit atoll.Bytes) error {
	cmd := git(ctx, "--git-dir="+gitDir, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	s := &scale{left: int64(limit)}
	cmd.Stdout = s
	err := run(cmd, nil)
	if s.left < 0 {
		return fail(atoll.ErrExhausted, "a check-out of the commit is larger than %s", limit)
	}
	return err
}

// A scale reads what ls-tree -l -z prints, until that is too much.
type scale struct {
	left   int64  // bytes
	head   []byte // of an entry: what is before its name, its size last
	inName bool
}

// leastSize is what any file takes: about that on a disk, and some of it in the
// memory of git.
const leastSize = 4 << 10

func (s *scale) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c == 0:
			size, _ := strconv.ParseInt(string(s.head[bytes.LastIndexByte(s.head, ' ')+1:]), 10, 64) // a submodule has none
			if s.left -= max(size, leastSize); s.left < 0 {
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

// hint adds to the error of a clone what may be meant.
func (k *kept) hint(err error) error {
	if strings.Contains(err.Error(), "Remote branch "+k.Revision+" not found") {
		return fail(atoll.ErrNotExist, "there is neither a branch nor a tag %q, and a commit is named by all of its digits", k.Revision)
	}
	return err
}

func noCommit(id string) error {
	return fail(atoll.ErrNotExist, "no branch or tag leads to a commit %s", id)
}

// has reports whether a repository has a commit.
func has(ctx context.Context, gitDir, commit string) bool {
	_, err := output(git(ctx, "--git-dir="+gitDir, "cat-file", "-e", commit+"^{commit}"))
	return err == nil
}

// output runs cmd and returns what it prints, without the last line's end.
func output(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	err := run(cmd, nil)
	return strings.TrimSuffix(out.String(), "\n"), err
}

// commit returns the commit that a sandbox gets which wants this one: "" means
// that at which the workspace stands. Kinds: ErrNotExist, ErrExhausted.
func (k *kept) commit(ctx context.Context, wanted string, limit atoll.Bytes) (string, error) {
	if wanted == "" || wanted == k.Commit {
		return k.Commit, nil
	}
	if !has(ctx, k.gitDir(), wanted) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		return "", noCommit(wanted)
	}
	return wanted, weigh(ctx, k.gitDir(), wanted, limit)
}

func (k *kept) gitDir() string { return filepath.Join(k.dir, k.Clone) }
