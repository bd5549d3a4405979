package lazyfs

import (
	"context"
	"io"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// TrackUse returns a file system like fs that calls begin at the start of each call. It
// calls end at the end of the call, or, after a successful Read or Open, when the reader
// or file is closed.
func TrackUse(fs atoll.FS, begin func() (end func())) atoll.FS {
	return trackedFS{FS(func(ctx context.Context, _ string, _ []string, fn func(context.Context, atoll.FS) error) error {
		defer begin()()
		return fn(ctx, fs)
	}), fs, begin}
}

type trackedFS struct {
	FS
	inner atoll.FS
	begin func() (end func())
}

// Sub implements atoll.SubFS.
func (n trackedFS) Sub(dir string) atoll.FS { return TrackUse(atoll.SubFiles(n.inner, dir), n.begin) }

// Read implements atoll.FS.
func (n trackedFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	end := n.begin()
	r, info, err := n.inner.Read(ctx, name, offset)
	if err != nil {
		end()
		return nil, info, err
	}
	return &trackedReader{r, sync.OnceFunc(end)}, info, nil
}

// A trackedReader reads a file, and ends its use on Close.
type trackedReader struct {
	io.ReadCloser
	end func()
}

func (r *trackedReader) Close() error {
	r.end()
	return r.ReadCloser.Close()
}

// Open implements atoll.Editor.
func (n trackedFS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	end := n.begin()
	file, err := atoll.OpenFile(ctx, n.inner, name, opts)
	if err != nil {
		end()
		return nil, err
	}
	return &trackedFile{file, sync.OnceFunc(end)}, nil
}

// A trackedFile is an open file, and ends its use on Close.
type trackedFile struct {
	atoll.File
	end func()
}

func (f *trackedFile) Close() error {
	defer f.end()
	return f.File.Close()
}

var (
	_ atoll.SubFS  = trackedFS{}
	_ atoll.Editor = trackedFS{}
)
