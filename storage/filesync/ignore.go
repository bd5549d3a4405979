package filesync

import (
	"bufio"
	"context"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/seed46cd37a8/atoll"
)

// IgnoreName is the file at the top of a directory that lists paths not to push, in the
// syntax of gitignore.
const IgnoreName = ".atollignore"

// maxIgnore is the most bytes of that file.
const maxIgnore = 64 << 10

// ignore matches paths that are not synchronized.
type ignore struct{ matcher gitignore.Matcher }

// matchPath reports whether path, or a directory above it, is ignored.
func (i *ignore) matchPath(path string, dir bool) bool {
	return i != nil && i.matcher != nil && i.matcher.Match(strings.Split(path, "/"), dir)
}

// readIgnore returns the rules in more, followed by those of the directory's file.
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

// newIgnore returns the rules in more, followed by those read from r.
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
		return nil, atoll.Errorf("sync", IgnoreName, atoll.ErrInvalid, "file is larger than %d KiB: shorten it, since a truncated rule could match other paths", maxIgnore>>10)
	}
	if err := lines.Err(); err != nil {
		return nil, atoll.Errorf("sync", IgnoreName, atoll.ErrInvalid, "%w", err)
	}
	if len(patterns) == 0 {
		return nil, nil
	}
	return &ignore{gitignore.NewMatcher(patterns)}, nil
}
