//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore/s3"
)

// measureSyncMemory syncs manyFiles files. The heap may grow by at most heapGoal bytes.
const (
	manyFiles = 100_000
	heapGoal  = 64 << 20
)

// measureSyncMemory measures how much the heap grows while filesync pushes many files, pushes them again, and
// pulls them. All files are below base.
func (b *bench) measureSyncMemory(ctx context.Context, s *objectServer, base string) (err error) {
	fmt.Fprintf(os.Stderr, "%d files\n", manyFiles)
	dir := filepath.Join(base, "many")
	for i := range manyFiles {
		name := filepath.Join(dir, fmt.Sprintf("some/directory %d/file of the number %d", i/1000, i))
		if i%1000 == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(name, fmt.Appendf(nil, "%d", i), 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(s.data, "many"), 0o755); err != nil {
		return err
	}
	bucket, err := s3.Open(ctx, s3.Options{
		Bucket: "many", Endpoint: "http://" + s.address, PathStyle: true, Region: "us-east-1",
		Credentials: func(context.Context) (s3.Credentials, error) {
			return s3.Credentials{AccessKey: accessKey, SecretKey: secretKey}, nil
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bucket.Close()) }()
	remote, err := filesync.New(bucket, "", filesync.Options{Dir: base})
	if err != nil {
		return err
	}
	push := func(t filesync.Tree) error {
		_, err := remote.Push(ctx, t, filesync.PushOptions{})
		return err
	}
	pull := func(t filesync.Tree) error {
		st, err := remote.Pull(ctx, t, filesync.PullOptions{})
		if err == nil && st.FilesDownloaded != manyFiles {
			err = fmt.Errorf("pulled %d of %d files", st.FilesDownloaded, manyFiles)
		}
		return err
	}
	other := filepath.Join(base, "many-pulled")
	if err := os.Mkdir(other, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		name, dir string
		do        func(filesync.Tree) error
	}{
		{"first push", dir, push}, {"push, nothing changed", dir, push}, {"first pull", other, pull},
	} {
		grown, took, err := measureHeap(func() error { return callWithTree(step.dir, step.do) })
		if err != nil {
			return err
		}
		b.table.addFact(fact{
			memoryTitle, fmt.Sprintf("%s of %d files: growth of the heap (%s)", step.name, manyFiles, formatMillis(took)),
			formatMiB(grown), "<= " + formatMiB(heapGoal), grown <= heapGoal,
		})
	}
	return nil
}

// callWithTree calls f with a directory of this machine as a tree.
func callWithTree(dir string, f func(filesync.Tree) error) error {
	files, err := dirfs.New(dir, dir, dirfs.Options{UID: -1, GID: -1})
	if err != nil {
		return err
	}
	return errors.Join(f(filesync.Tree{FS: files, Dir: dir}), files.Close())
}

// measureHeap returns the largest growth of the objects on the heap while f runs, in bytes, including
// garbage that is not collected yet.
func measureHeap(f func() error) (bytes int64, took time.Duration, err error) {
	now := func() int64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return int64(s[0].Value.Uint64())
	}
	runtime.GC()
	before := now()
	peak, stop, done := before, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			peak = max(peak, now())
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	start := time.Now()
	err = f()
	took = time.Since(start)
	close(stop)
	<-done
	return peak - before, took, err
}
