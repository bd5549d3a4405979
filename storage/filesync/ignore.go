package filesync

import (
	"context"
	"io"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gitignore"
)

// IgnoreName is the file at the top of a directory that lists paths not to push, in the
// syntax of gitignore.
const IgnoreName = ".atollignore"

// maxIgnore is the most bytes of that file.
const maxIgnore = 64 << 10

// readIgnore returns the rules in more, followed by those of the directory's file.
func readIgnore(ctx context.Context, fs atoll.FS, more []string) (*gitignore.Rules, error) {
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
func newIgnore(more []string, r io.Reader) (*gitignore.Rules, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxIgnore+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxIgnore {
		return nil, atoll.Errorf("sync", IgnoreName, atoll.ErrInvalid, "file is larger than %d KiB: shorten it, since a truncated rule could match other paths", maxIgnore>>10)
	}
	return gitignore.Parse(strings.Join(more, "\n"), string(b)), nil
}
