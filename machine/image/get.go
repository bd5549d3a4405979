//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Get returns the image that ref names, fetching and unpacking it first where
// Options.Pull asks for that. Once unpacked, an image is returned without any
// request, and without reading more of it than a page.
//
// Many who ask for one image at once share one pull, also between processes.
// ctx bounds only this call's wait: the pull goes on while anyone waits for
// it, and stops when the last has gone; what was fetched until then is kept.
// Requests that fail for want of a connection, or with a status of 429 or 5xx,
// are tried again, less and less often.
//
// progress may be nil; it is called from the calling goroutine, a few times a
// second, with phase "pull" while layers are being fetched and "unpack" after,
// in compressed bytes.
//
// Kinds: ErrInvalid (not the name of an image, or what it names is damaged or
// no image), ErrNotExist, ErrDenied (docker login), ErrUnavailable (no answer),
// ErrTimeout (Options.Timeout is over), ErrExhausted (no space left, or more
// than Options.Limit). When ctx ends, the error is ctx's.
func (s *Store) Get(ctx context.Context, ref string, progress func(atoll.Progress)) (*Image, error) {
	return s.get(ctx, ref, s.opts.Pull, progress)
}

// Pull is Get with PullAlways.
func (s *Store) Pull(ctx context.Context, ref string, progress func(atoll.Progress)) (*Image, error) {
	return s.get(ctx, ref, PullAlways, progress)
}

func (s *Store) get(ctx context.Context, ref string, policy Policy, progress func(atoll.Progress)) (*Image, error) {
	r, err := parse(ref)
	if err != nil {
		return nil, atoll.E("image", ref, atoll.ErrInvalid, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, atoll.E("image", ref, atoll.KindOf(err), err)
	}
	switch r.kind {
	case fromDir:
		return openDir(r)
	case fromStore:
		if img, err := s.cached(r); img != nil || err != nil {
			return img, err
		}
		return nil, atoll.Errorf("image", ref, atoll.ErrNotExist, "no such image in %s, and one with such a name is never pulled", s.dir)
	case fromRegistry:
		if policy != PullAlways || r.digest != (v1.Hash{}) {
			if img, err := s.cached(r); img != nil || err != nil {
				return img, err
			}
		}
		if policy == PullNever {
			return nil, atoll.Errorf("image", ref, atoll.ErrNotExist, "no such image in %s, and the pull policy is never", s.dir)
		}
	}
	j, err := s.join(r)
	if err != nil {
		return nil, err
	}
	return s.await(ctx, j, progress)
}

// openDir describes a directory that is used where it is.
func openDir(r reference) (*Image, error) {
	root, err := filepath.EvalSymlinks(r.path)
	if err != nil {
		return nil, atoll.Errorf("image", r.text, atoll.KindOf(err), "no such directory: %w", err)
	}
	fi, err := os.Stat(root)
	if err != nil {
		return nil, atoll.E("image", r.text, atoll.KindOf(err), err)
	}
	if !fi.IsDir() {
		return nil, atoll.Errorf("image", r.text, atoll.ErrInvalid, "not a directory")
	}
	return &Image{Ref: r.text, Root: root}, nil
}

// A job fetches one image for all who wait for it.
type job struct {
	ref     reference
	waiters int // under Store.mu
	cancel  context.CancelFunc
	meter   meter

	done chan struct{} // closed when what follows is set
	img  *Image
	err  error
}

// join returns the job for r, started if none is under way, and counts the
// caller among those who wait for it.
func (s *Store) join(r reference) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, atoll.Errorf("image", r.text, atoll.ErrUnavailable, "the image store is closed")
	}
	j := s.jobs[r.text]
	if j == nil {
		j = &job{ref: r, done: make(chan struct{})}
		ctx, cancel := context.WithCancel(s.ctx)
		j.cancel = cancel
		s.jobs[r.text] = j
		s.wg.Go(func() { s.run(ctx, j) })
	}
	j.waiters++
	return j, nil
}

// leave ends one wait for j. The last one out stops it.
func (s *Store) leave(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.waiters--
	if j.waiters == 0 {
		j.cancel()
		s.forget(j)
	}
}

// forget makes the next one who asks start anew. s.mu is held.
func (s *Store) forget(j *job) {
	if s.jobs[j.ref.text] == j {
		delete(s.jobs, j.ref.text)
	}
}

// await waits for j's end or ctx's, and reports progress.
func (s *Store) await(ctx context.Context, j *job, progress func(atoll.Progress)) (*Image, error) {
	defer s.leave(j)
	var tick <-chan time.Time
	report := func() {}
	if progress != nil {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		tick = t.C
		var last atoll.Progress
		report = func() {
			if p := j.meter.progress(j.ref.text); p != last && p.Phase != "" {
				last = p
				progress(p)
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil, atoll.E("image", j.ref.text, atoll.KindOf(ctx.Err()), ctx.Err())
		case <-tick:
			report()
		case <-j.done:
			report()
			if j.err != nil {
				return nil, j.err
			}
			img := *j.img // each caller has its own
			return &img, nil
		}
	}
}

var errTookTooLong = errors.New("took longer than its limit")

// run does the work of j.
func (s *Store) run(ctx context.Context, j *job) {
	defer close(j.done)
	defer func() {
		s.mu.Lock()
		s.forget(j)
		s.mu.Unlock()
		j.cancel()
	}()
	if s.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.opts.Timeout, errTookTooLong)
		defer cancel()
	}
	start := time.Now()
	img, err := s.fetch(ctx, j.ref, &j.meter)
	if err != nil && ctx.Err() != nil {
		err = s.interrupted(ctx, j.ref)
	}
	if err != nil {
		s.log.Debug("image", "ref", j.ref.text, "err", err, "dur", time.Since(start))
		j.err = err
		return
	}
	s.log.Debug("image", "ref", j.ref.text, "digest", img.Digest, "dur", time.Since(start))
	j.img = img
}

// interrupted is the error of a job whose ctx has ended.
func (s *Store) interrupted(ctx context.Context, r reference) error {
	if context.Cause(ctx) == errTookTooLong {
		return atoll.Errorf("image", r.text, atoll.ErrTimeout, "took longer than %s: what was fetched is kept, try again", s.opts.Timeout)
	}
	return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "the image store was closed")
}

// fetch makes the image that r names be in the store.
func (s *Store) fetch(ctx context.Context, r reference, m *meter) (*Image, error) {
	c, err := s.describe(ctx, r, m)
	if err != nil {
		return nil, s.failed(r, err)
	}
	if err := s.checkPlatform(r, c.config); err != nil {
		return nil, err
	}
	rec, err := s.materialize(ctx, r, c, m)
	if err != nil {
		return nil, err
	}
	if r.kind == fromRegistry {
		if err := s.setTag(r.text, c.digest); err != nil {
			return nil, s.failed(r, err)
		}
	}
	touch(s.path(rootsDir, file(c.digest), lockName))
	rec.Ref = r.text
	return &rec.Image, nil
}

// describe finds out what r is made of.
func (s *Store) describe(ctx context.Context, r reference, m *meter) (*contents, error) {
	switch r.kind {
	case fromLayout:
		return s.openLayout(r)
	case fromArchive:
		return s.openArchive(r)
	}
	return s.openRemote(ctx, r, m)
}

// checkPlatform refuses an image for other machines: it would be unpacked for
// nothing, since none of its programs could start.
func (s *Store) checkPlatform(r reference, config *v1.ConfigFile) error {
	if config.OS == "" || config.Architecture == "" ||
		config.OS == s.platform.OS && config.Architecture == s.platform.Architecture {
		return nil
	}
	return atoll.Errorf("image", r.text, atoll.ErrNotExist, "is for %s/%s, not for %s", config.OS, config.Architecture, s.platform)
}

// materialize returns the unpacked image, which it unpacks unless it, or
// another process while this one waited, has done so before.
func (s *Store) materialize(ctx context.Context, r reference, c *contents, m *meter) (*record, error) {
	if rec, err := s.lookup(c.digest); !errors.Is(err, fs.ErrNotExist) {
		return rec, err
	}
	unlock, err := s.lock(ctx, file(c.digest))
	if err != nil {
		return nil, s.failed(r, err)
	}
	defer unlock()
	if rec, err := s.lookup(c.digest); !errors.Is(err, fs.ErrNotExist) {
		return rec, err
	}
	temp, err := s.tempName()
	if err != nil {
		return nil, s.failed(r, err)
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		return nil, s.failed(r, err)
	}
	if err := s.build(ctx, c, temp, m); err != nil {
		if rmErr := fsutil.RemoveAll(temp); rmErr != nil {
			s.log.Warn("image", "ref", r.text, "left", temp, "err", rmErr)
		}
		return nil, s.failed(r, err)
	}
	rec, err := s.lookup(c.digest)
	if err != nil {
		return nil, s.failed(r, fmt.Errorf("just unpacked: %w", err))
	}
	return rec, nil
}
