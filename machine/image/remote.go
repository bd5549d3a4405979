//go:build linux

package image

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
)

// Limits of requests to registries.
const (
	attempts  = 6 // of each request; with the default backoff they wait 8 s in total
	downloads = 3 // concurrent downloads of layers, as in docker
)

// A registry is a client of the repository of one image, for one job.
type registry struct {
	store *Store
	ref   reference
	repo  name.Repository

	mu     sync.Mutex
	puller *remote.Puller // authenticated; nil before the first use and after a failure
}

// openRemote fetches the manifest and the configuration of r from its registry.
func (s *Store) openRemote(ctx context.Context, r reference, m *meter) (*contents, error) {
	reg, ref, err := s.newRegistry(r)
	if err != nil {
		return nil, err
	}
	top, err := reg.fetchManifest(ctx, ref)
	if err != nil {
		return nil, err
	}
	top, man, err := s.resolveManifest(top, func(h v1.Hash) (manifest, error) {
		return reg.fetchManifest(ctx, reg.repo.Digest(h.String()))
	})
	if err != nil {
		return nil, err
	}
	// The store fetches each layer while it unpacks those below it: the check of
	// the unpacked size would come too late.
	if s.opts.Limit >= 0 && fetchSize(man) > int64(s.opts.Limit) {
		return nil, errOverLimit
	}
	m.toFetch.Add(man.Config.Size)
	f, err := reg.getBlob(ctx, man.Config, m)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(raw, len(man.Layers))
	if err != nil {
		return nil, err
	}
	c := &contents{digest: top.digest, config: config, blobs: []string{man.Config.Digest.String()}}
	ready := make([]chan fetchResult, len(man.Layers))
	for i, l := range man.Layers {
		ready[i] = make(chan fetchResult, 1)
		c.blobs = append(c.blobs, l.Digest.String())
		c.layers = append(c.layers, layer{
			name: l.Digest.String(), diffID: config.RootFS.DiffIDs[i], size: l.Size,
			open: func(ctx context.Context) (io.ReadCloser, error) {
				select {
				case f := <-ready[i]:
					return f.file, f.err
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			},
		})
	}
	c.fetch = func(ctx context.Context) func() { return reg.fetchLayers(ctx, man.Layers, ready, m) }
	return c, nil
}

// A fetchResult is a fetched layer, or the error.
type fetchResult struct {
	file *os.File
	err  error
}

// fetchLayers starts to fetch the layers, several at once, the lowest first, and sends
// each to its channel. wait waits for the end of that, and closes the files that
// nobody has received.
func (reg *registry) fetchLayers(ctx context.Context, layers []v1.Descriptor, ready []chan fetchResult, m *meter) (wait func()) {
	for _, l := range layers {
		m.toFetch.Add(l.Size)
	}
	var g errgroup.Group
	g.SetLimit(downloads)
	started := make(chan struct{})
	go func() {
		defer close(started)
		for i, l := range layers {
			g.Go(func() error {
				f, err := reg.getBlob(ctx, l, m)
				ready[i] <- fetchResult{f, err}
				return nil
			})
		}
	}()
	return func() {
		<-started
		g.Wait()
		for _, c := range ready {
			select {
			case f := <-c:
				if f.file != nil {
					f.file.Close()
				}
			default:
			}
		}
	}
}

// newRegistry returns a client of the repository of r, and r's name in it.
func (s *Store) newRegistry(r reference) (*registry, name.Reference, error) {
	ref := r.remote
	if host := ref.Context().RegistryStr(); s.allowsPlainHTTP(host) {
		again, err := name.ParseReference(ref.Name(), name.Insecure)
		if err != nil {
			return nil, nil, err
		}
		ref = again
	}
	return &registry{store: s, ref: r, repo: ref.Context()}, ref, nil
}

// currentPuller returns the current puller, or a new one.
func (reg *registry) currentPuller(ctx context.Context) (*remote.Puller, error) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.puller != nil {
		return reg.puller, nil
	}
	auth, err := authn.Resolve(ctx, reg.store.opts.Keychain, reg.repo)
	if err != nil {
		return nil, atoll.Errorf("image", reg.ref.text, atoll.ErrDenied, "docker's credentials for %s cannot be read: %w", reg.repo.RegistryStr(), err)
	}
	reg.puller, err = remote.NewPuller(
		remote.WithAuth(auth),
		remote.WithTransport(guardTransport{reg.store, reg.repo.RegistryStr()}),
		remote.WithUserAgent("atoll"),
		// withRetry does the retries.
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}),
		remote.WithRetryStatusCodes(),
		remote.WithJobs(downloads+1),
	)
	return reg.puller, err
}

// withRetry calls f until it succeeds, fails permanently, or has failed attempts
// times, and gives its last failure a kind.
func (reg *registry) withRetry(ctx context.Context, what string, f func(*remote.Puller) error) error {
	damaged := false
	policy := retry.Policy{
		First: reg.store.backoff, Attempts: attempts,
		If: func(err error) bool {
			if errors.As(err, new(*damageError)) {
				again := !damaged // damaged twice: the transfer is not the cause
				damaged = true
				return again
			}
			return !hasKind(err) && isTransient(err)
		},
		Notify: func(attempt int, err error) {
			reg.store.log.Debug("retry", "ref", reg.ref.text, "what", what, "attempt", attempt, "err", err)
			reg.mu.Lock()
			reg.puller = nil
			reg.mu.Unlock()
		},
	}
	err := policy.Do(ctx, func() error {
		p, err := reg.currentPuller(ctx)
		if err == nil {
			err = f(p)
		}
		return err
	})
	if err == nil || ctx.Err() != nil || hasKind(err) || errors.As(err, new(*damageError)) {
		return err
	}
	return registryError(reg.ref, err)
}

// hasKind reports whether an error needs no kind from registryError: it has one, or this machine
// caused it.
func hasKind(err error) bool {
	return errors.As(err, new(*atoll.Error)) || errors.As(err, new(*localError))
}

// fetchManifest fetches a manifest or index, and checks it if ref is a digest.
func (reg *registry) fetchManifest(ctx context.Context, ref name.Reference) (manifest, error) {
	var m manifest
	err := reg.withRetry(ctx, "manifest", func(p *remote.Puller) error {
		d, err := p.Get(ctx, ref)
		if err != nil {
			return err
		}
		m = manifest{digest: d.Digest, mediaType: d.MediaType, raw: d.Manifest}
		return nil
	})
	return m, err
}

// openBlob opens a blob of the registry for reading.
func (reg *registry) openBlob(ctx context.Context, p *remote.Puller, h v1.Hash) (io.ReadCloser, error) {
	l, err := p.Layer(ctx, reg.repo.Digest(h.String()))
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}
