//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"io"
	"iter"
	"net"
	"os"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/api"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/files"
	"github.com/seed46cd37a8/atoll/provider/gvisor/internal/keeper"
)

// A keeperClient speaks to the keeper of one sandbox, or to none if it has
// none. It outlives the keepers of a sandbox that is stopped and started.
type keeperClient struct {
	id, dir string
	info    atoll.Info

	once   sync.Once
	client *api.Client
	err    error
}

// keeper returns the client for a sandbox's keeper. It does not connect yet.
func (p *Provider) keeper(id string) *keeperClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.keepers[id]
	if k == nil {
		k = &keeperClient{id: id, dir: p.dir.Sandbox(id), info: p.info}
		p.keepers[id] = k
	}
	return k
}

// forget drops the client of a removed sandbox.
func (p *Provider) forget(id string) {
	p.mu.Lock()
	k := p.keepers[id]
	delete(p.keepers, id)
	p.mu.Unlock()
	if k != nil {
		k.close()
	}
}

// sandbox is the sandbox as the keeper serves it. Without a keeper its calls
// are ErrUnavailable.
func (k *keeperClient) sandbox() atoll.Sandbox {
	k.once.Do(func() {
		k.client, k.err = api.NewClient(context.Background(), api.ClientOptions{Dial: k.dial, Info: &k.info})
	})
	if k.err != nil {
		panic("gvisor: client for a known provider: " + k.err.Error()) // it does not connect, so it cannot fail
	}
	return k.client.Sandbox(k.id)
}

func (k *keeperClient) dial(ctx context.Context) (net.Conn, error) {
	dir, err := os.Open(k.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", keeper.SocketPath(dir))
}

func (k *keeperClient) close() {
	k.once.Do(func() {})
	if k.client != nil {
		_ = k.client.Close() // drops idle connections
	}
}

// sandboxFiles is the file system of a sandbox that may run or not.
type sandboxFiles struct{ s *sandbox }

// with calls fn with the file system as it can be reached now.
func (f *sandboxFiles) with(fn func(atoll.FS) error) error {
	p, id := f.s.p, f.s.id
	rec, err := p.read("files", id)
	if err != nil {
		return err
	}
	p.dir.Use(id)
	inside := func(context.Context) (atoll.FS, error) {
		return nil, atoll.Errorf("files", id, atoll.ErrStopped,
			"sandbox is stopped: only its work directory and volumes can be reached")
	}
	if live(rec.Status.State) {
		remote := atoll.Files(p.keeper(id).sandbox())
		if user := cmp.Or(rec.Status.Spec.User, rec.User); !keeper.PlainRoot(user) {
			return fn(remote) // only inside it is known what the user may do
		}
		inside = func(context.Context) (atoll.FS, error) { return remote, nil }
	}
	fs := f.s.files(rec, inside)
	defer fs.Close()
	return fn(fs)
}

// Read implements atoll.FS.
func (f *sandboxFiles) Read(ctx context.Context, name string, offset int64) (r io.ReadCloser, info atoll.FileInfo, err error) {
	err = f.with(func(fs atoll.FS) (err error) { r, info, err = fs.Read(ctx, name, offset); return err })
	return r, info, err
}

// Write implements atoll.FS.
func (f *sandboxFiles) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (info atoll.FileInfo, err error) {
	err = f.with(func(fs atoll.FS) (err error) { info, err = fs.Write(ctx, name, r, opts); return err })
	return info, err
}

// Stat implements atoll.FS.
func (f *sandboxFiles) Stat(ctx context.Context, name string) (info atoll.FileInfo, err error) {
	err = f.with(func(fs atoll.FS) (err error) { info, err = fs.Stat(ctx, name); return err })
	return info, err
}

// List implements atoll.FS.
func (f *sandboxFiles) List(ctx context.Context, name string, recursive bool) (list []atoll.FileInfo, err error) {
	err = f.with(func(fs atoll.FS) (err error) { list, err = fs.List(ctx, name, recursive); return err })
	return list, err
}

// Mkdir implements atoll.FS.
func (f *sandboxFiles) Mkdir(ctx context.Context, name string, mode uint32) error {
	return f.with(func(fs atoll.FS) error { return fs.Mkdir(ctx, name, mode) })
}

// Rename implements atoll.FS.
func (f *sandboxFiles) Rename(ctx context.Context, from, to string) error {
	return f.with(func(fs atoll.FS) error { return fs.Rename(ctx, from, to) })
}

// Remove implements atoll.FS.
func (f *sandboxFiles) Remove(ctx context.Context, name string, recursive bool) error {
	return f.with(func(fs atoll.FS) error { return fs.Remove(ctx, name, recursive) })
}

// WriteTar implements atoll.FS.
func (f *sandboxFiles) WriteTar(ctx context.Context, name string, w io.Writer) error {
	return f.with(func(fs atoll.FS) error { return fs.WriteTar(ctx, name, w) })
}

// ReadTar implements atoll.FS.
func (f *sandboxFiles) ReadTar(ctx context.Context, name string, r io.Reader) error {
	return f.with(func(fs atoll.FS) error { return fs.ReadTar(ctx, name, r) })
}

// Watch implements atoll.FS.
func (f *sandboxFiles) Watch(ctx context.Context, name string, recursive bool) iter.Seq2[atoll.FileEvent, error] {
	return func(yield func(atoll.FileEvent, error) bool) {
		err := f.with(func(fs atoll.FS) error {
			for event, err := range fs.Watch(ctx, name, recursive) {
				if !yield(event, err) {
					break
				}
			}
			return nil
		})
		if err != nil {
			yield(atoll.FileEvent{}, err)
		}
	}
}

var (
	_ atoll.FS = (*sandboxFiles)(nil)
	_ atoll.FS = (*files.FS)(nil)
)
