package lazyfs

import (
	"context"
	"io"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// Noting is fs, of which it is noted when it is used: begin is called when a call
// begins, and what that returns when the call has ended, or when what it reads is
// closed.
func Noting(fs atoll.FS, begin func() (end func())) atoll.FS {
	return noting{FS(func(ctx context.Context, _ string, _ []string, fn func(context.Context, atoll.FS) error) error {
		defer begin()()
		return fn(ctx, fs)
	}), fs, begin}
}

type noting struct {
	FS
	inner atoll.FS
	begin func() (end func())
}

// Sub implements atoll.SubFS.
func (n noting) Sub(dir string) atoll.FS { return Noting(atoll.SubFiles(n.inner, dir), n.begin) }

// Read implements atoll.FS.
func (n noting) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	end := n.begin()
	r, info, err := n.inner.Read(ctx, name, offset)
	if err != nil {
		end()
		return nil, info, err
	}
	return &reader{r, sync.OnceFunc(end)}, info, nil
}

// A reader is of a file in use.
type reader struct {
	io.ReadCloser
	end func()
}

func (r *reader) Close() error {
	r.end()
	return r.ReadCloser.Close()
}

var _ atoll.SubFS = noting{}
