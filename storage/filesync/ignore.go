package filesync

import (
	"bufio"
	"context"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/seed46cd37a8/atoll"
)

// IgnoreName is the file, at the top of a directory, that says what is not pushed, in
// the syntax of gitignore.
const IgnoreName = ".atollignore"

// maxIgnore is how many bytes it may have.
const maxIgnore = 64 << 10

// ignore knows what is not kept in step.
type ignore struct{ matcher gitignore.Matcher }

// match reports whether path, or a directory that it is in, is ignored.
func (i *ignore) match(path string, dir bool) bool {
	return i != nil && i.matcher != nil && i.matcher.Match(strings.Split(path, "/"), dir)
}

// readIgnore reads the rules of a directory, and adds others, which come first.
func readIgnore(ctx context.Context, fs atoll.FS, more []string) (*ignore, error) {
	body, _, err := fs.Read(ctx, IgnoreName, 0)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return newIgnore(more, strings.NewReader(""))
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return newIgnore(more, body)
}

// newIgnore reads rules, after others.
func newIgnore(more []string, r io.Reader) (*ignore, error) {
	var patterns []gitignore.Pattern
	add := func(line string) {
		line = strings.TrimSuffix(line, "\r")
		if line != "" && !strings.HasPrefix(line, "#") {
			patterns = append(patterns, gitignore.ParsePattern(line, nil))
		}
	}
	for _, line := range more {
		add(line)
	}
	in := &io.LimitedReader{R: r, N: maxIgnore + 1}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxPath*2)
	for lines.Scan() {
		add(lines.Text())
	}
	if in.N <= 0 {
		return nil, atoll.Errorf("sync", IgnoreName, atoll.ErrInvalid, "it has more than %d KiB: what is cut off a rule may be another one", maxIgnore>>10)
	}
	if err := lines.Err(); err != nil {
		return nil, atoll.Errorf("sync", IgnoreName, atoll.ErrInvalid, "%w", err)
	}
	if len(patterns) == 0 {
		return nil, nil
	}
	return &ignore{gitignore.NewMatcher(patterns)}, nil
}
