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
)

// How registries are asked.
const (
	attempts  = 6 // of each request; with the default backoff that is 8 s of waiting
	downloads = 3 // of layers at once, as docker
)

// A registry is the repository of one image, seen by one job.
type registry struct {
	store *Store
	ref   reference
	repo  name.Repository

	mu     sync.Mutex
	puller *remote.Puller // has said who we are; nil before and after a failure
}

// openRemote asks the registry for what describes r.
func (s *Store) openRemote(ctx context.Context, r reference, m *meter) (*contents, error) {
	reg, ref, err := s.registry(r)
	if err != nil {
		return nil, err
	}
	top, err := reg.manifest(ctx, ref)
	if err != nil {
		return nil, err
	}
	top, man, err := s.choose(top, func(h v1.Hash) (manifest, error) {
		return reg.manifest(ctx, reg.repo.Digest(h.String()))
	})
	if err != nil {
		return nil, err
	}
	// Each layer is fetched while those below it are unpacked: what that comes
	// to is found out too late.
	if s.opts.Limit >= 0 && fetchSize(man) > int64(s.opts.Limit) {
		return nil, errOverLimit
	}
	m.toFetch.Add(man.Config.Size)
	f, err := reg.blob(ctx, man.Config, m)
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
	ready := make([]chan fetched, len(man.Layers))
	for i, l := range man.Layers {
		ready[i] = make(chan fetched, 1)
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
	c.fetch = func(ctx context.Context) func() { return reg.fetch(ctx, man.Layers, ready, m) }
	return c, nil
}

// fetched is a layer that is at hand, or why it is not.
type fetched struct {
	file *os.File
	err  error
}

// fetch fetches the layers, several at once, the lowest first, and hands each
// to its channel. The function that it returns waits for the end of that, and
// closes what nobody took.
func (reg *registry) fetch(ctx context.Context, layers []v1.Descriptor, ready []chan fetched, m *meter) (wait func()) {
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
				f, err := reg.blob(ctx, l, m)
				ready[i] <- fetched{f, err}
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

// registry returns the repository of r, and r's name in it.
func (s *Store) registry(r reference) (*registry, name.Reference, error) {
	ref := r.remote
	if host := ref.Context().RegistryStr(); s.plainAllowed(host) {
		again, err := name.ParseReference(ref.Name(), name.Insecure)
		if err != nil {
			return nil, nil, err
		}
		ref = again
	}
	return &registry{store: s, ref: r, repo: ref.Context()}, ref, nil
}

// session returns the puller in use, or a new one.
func (reg *registry) session(ctx context.Context) (*remote.Puller, error) {
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
		remote.WithTransport(guard{reg.store, reg.repo.RegistryStr()}),
		remote.WithUserAgent("atoll"),
		// The retries are ours.
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}),
		remote.WithRetryStatusCodes(),
		remote.WithJobs(downloads+1),
	)
	return reg.puller, err
}

// retry calls f until it succeeds, fails for good, or has failed often enough,
// and gives its last failure a kind.
func (reg *registry) retry(ctx context.Context, what string, f func(*remote.Puller) error) error {
	mended := false
	for n, wait := 1, reg.store.backoff; ; n, wait = n+1, 2*wait {
		p, err := reg.session(ctx)
		if err == nil {
			err = f(p)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		var known *atoll.Error
		var local *localError
		if errors.As(err, &known) || errors.As(err, &local) {
			return err
		}
		var bad *damage
		isBad := errors.As(err, &bad)
		if isBad && mended { // the same again: it is not the way here that damages it
			return err
		}
		mended = mended || isBad
		if !isBad && (!transient(err) || n == attempts) {
			return refused(reg.ref, err)
		}
		reg.store.log.Debug("retry", "ref", reg.ref.text, "what", what, "attempt", n, "err", err)
		reg.mu.Lock()
		reg.puller = nil
		reg.mu.Unlock()
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// manifest fetches a manifest or index, which is checked when ref is a digest.
func (reg *registry) manifest(ctx context.Context, ref name.Reference) (manifest, error) {
	var m manifest
	err := reg.retry(ctx, "manifest", func(p *remote.Puller) error {
		d, err := p.Get(ctx, ref)
		if err != nil {
			return err
		}
		m = manifest{digest: d.Digest, mediaType: d.MediaType, raw: d.Manifest}
		return nil
	})
	return m, err
}

// open starts to read a blob.
func (reg *registry) open(ctx context.Context, p *remote.Puller, h v1.Hash) (io.ReadCloser, error) {
	l, err := p.Layer(ctx, reg.repo.Digest(h.String()))
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}
