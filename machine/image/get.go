//go:build linux

package image

import (
	"cmp"
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

// Get returns the image that ref names. It fetches and unpacks the image first if
// Options.Pull asks for that. Get of an unpacked image makes no request, and reads no
// more than a page of it.
//
// Concurrent calls for one image share one pull, also between processes. ctx bounds
// only this call's wait: the pull goes on while any caller waits for it, and stops
// when the last one has gone; the store keeps what was fetched until then. Get
// repeats requests that fail for lack of a connection, or with a status of 429 or 5xx,
// with growing delays.
//
// progress may be nil. Get calls it from the calling goroutine, a few times a second,
// with phase "pull" while it fetches layers and "unpack" after, in compressed bytes.
//
// Kinds: ErrInvalid (not the name of an image, or a damaged image), ErrNotExist,
// ErrDenied (docker login), ErrUnavailable (no answer),
// ErrTimeout (Options.Timeout is over), ErrExhausted (no space left, or more
// than Options.Limit). When ctx ends, the error is ctx's.
func (s *Store) Get(ctx context.Context, ref string, progress func(atoll.Progress)) (*Image, error) {
	return s.GetBy(ctx, "", ref, progress)
}

// GetBy is Get with another policy than that of Options. Empty means that of Options.
func (s *Store) GetBy(ctx context.Context, policy atoll.PullPolicy, ref string, progress func(atoll.Progress)) (*Image, error) {
	policy = cmp.Or(policy, s.opts.Pull)
	r, err := parseReference(ref)
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
		if img, err := s.cachedImage(r); img != nil || err != nil {
			return img, err
		}
		return nil, atoll.Errorf("image", ref, atoll.ErrNotExist, "no such image in %s, and names like this are never pulled", s.dir)
	case fromRegistry:
		if policy != atoll.PullAlways || r.digest != (v1.Hash{}) {
			if img, err := s.cachedImage(r); img != nil || err != nil {
				return img, err
			}
		}
		if policy == atoll.PullNever {
			return nil, atoll.Errorf("image", ref, atoll.ErrNotExist, "no such image in %s, and the pull policy is never: atoll pull fetches it", s.dir)
		}
	}
	j, err := s.joinJob(r)
	if err != nil {
		return nil, err
	}
	return s.awaitJob(ctx, j, progress)
}

// openDir returns the Image of a directory that is used in place.
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

// A job fetches one image for all callers that wait for it.
type job struct {
	ref     reference
	waiters int // under Store.mu
	cancel  context.CancelFunc
	meter   meter

	done chan struct{} // closed when img and err are set
	img  *Image
	err  error
}

// joinJob returns the job for r, which it starts if there is none, and counts the
// caller as a waiter.
func (s *Store) joinJob(r reference) (*job, error) {
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
		s.wg.Go(func() { s.runJob(ctx, j) })
	}
	j.waiters++
	return j, nil
}

// leaveJob ends one wait for j. The last waiter to leave stops the job.
func (s *Store) leaveJob(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.waiters--
	if j.waiters == 0 {
		j.cancel()
		s.forgetJob(j)
	}
}

// forgetJob makes the next call for j's reference start a new job. s.mu is held.
func (s *Store) forgetJob(j *job) {
	if s.jobs[j.ref.text] == j {
		delete(s.jobs, j.ref.text)
	}
}

// awaitJob waits for the end of j or of ctx, and reports progress.
func (s *Store) awaitJob(ctx context.Context, j *job, progress func(atoll.Progress)) (*Image, error) {
	defer s.leaveJob(j)
	var tick <-chan time.Time
	report := func() {}
	if progress != nil {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		tick = t.C
		var last atoll.Progress
		report = func() {
			if p := j.meter.currentProgress(j.ref.text); p != last && p.Phase != "" {
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
			img := *j.img // each caller gets its own copy
			return &img, nil
		}
	}
}

var errTookTooLong = errors.New("took longer than its limit")

// runJob fetches the image of j.
func (s *Store) runJob(ctx context.Context, j *job) {
	defer close(j.done)
	defer func() {
		s.mu.Lock()
		s.forgetJob(j)
		s.mu.Unlock()
		j.cancel()
	}()
	if s.opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.opts.Timeout, errTookTooLong)
		defer cancel()
	}
	start := time.Now()
	img, err := s.fetchImage(ctx, j.ref, &j.meter)
	if err != nil && ctx.Err() != nil {
		err = s.interruptedError(ctx, j.ref)
	}
	if err != nil {
		s.log.Debug("image", "ref", j.ref.text, "err", err, "dur", time.Since(start))
		j.err = err
		return
	}
	s.log.Debug("image", "ref", j.ref.text, "digest", img.Digest, "dur", time.Since(start))
	j.img = img
}

// interruptedError returns the error of a job whose ctx has ended.
func (s *Store) interruptedError(ctx context.Context, r reference) error {
	if context.Cause(ctx) == errTookTooLong {
		return atoll.Errorf("image", r.text, atoll.ErrTimeout, "took longer than %s; the blobs fetched so far are kept, try again", s.opts.Timeout)
	}
	return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "the image store was closed")
}

// fetchImage fetches and unpacks the image that r names, and tags it.
func (s *Store) fetchImage(ctx context.Context, r reference, m *meter) (*Image, error) {
	c, err := s.openContents(ctx, r, m)
	if err != nil {
		return nil, s.imageError(r, err)
	}
	if err := s.checkPlatform(r, c.config); err != nil {
		return nil, err
	}
	rec, err := s.ensureUnpacked(ctx, r, c, m)
	if err != nil {
		return nil, err
	}
	if r.kind == fromRegistry {
		if err := s.setTag(r.text, c.digest); err != nil {
			return nil, s.imageError(r, err)
		}
	}
	markUsed(s.storePath(rootsDir, digestName(c.digest), lockName))
	rec.Ref = r.text
	return &rec.Image, nil
}

// openContents returns the contents of the image that r names, not unpacked yet.
func (s *Store) openContents(ctx context.Context, r reference, m *meter) (*contents, error) {
	switch r.kind {
	case fromLayout:
		return s.openLayout(r)
	case fromArchive:
		return s.openArchive(r)
	}
	return s.openRemote(ctx, r, m)
}

// checkPlatform refuses an image for other machines: unpacking it would be useless,
// since none of its programs could start.
func (s *Store) checkPlatform(r reference, config *v1.ConfigFile) error {
	if config.OS == "" || config.Architecture == "" ||
		config.OS == s.platform.OS && config.Architecture == s.platform.Architecture {
		return nil
	}
	return atoll.Errorf("image", r.text, atoll.ErrNotExist, "is for %s/%s, not for %s", config.OS, config.Architecture, s.platform)
}

// ensureUnpacked returns the record of the unpacked image. It unpacks the image unless
// this process has done so before, or another one did while this one waited.
func (s *Store) ensureUnpacked(ctx context.Context, r reference, c *contents, m *meter) (*record, error) {
	if rec, err := s.readRecord(c.digest); !errors.Is(err, fs.ErrNotExist) {
		return rec, err
	}
	unlock, err := s.acquireLock(ctx, digestName(c.digest))
	if err != nil {
		return nil, s.imageError(r, err)
	}
	defer unlock()
	if rec, err := s.readRecord(c.digest); !errors.Is(err, fs.ErrNotExist) {
		return rec, err
	}
	temp, err := s.tempName()
	if err != nil {
		return nil, s.imageError(r, err)
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		return nil, s.imageError(r, err)
	}
	if err := s.buildImage(ctx, c, temp, m); err != nil {
		if rmErr := fsutil.RemoveAll(temp); rmErr != nil {
			s.log.Warn("image", "ref", r.text, "left", temp, "err", rmErr)
		}
		return nil, s.imageError(r, err)
	}
	rec, err := s.readRecord(c.digest)
	if err != nil {
		return nil, s.imageError(r, fmt.Errorf("just unpacked: %w", err))
	}
	return rec, nil
}
