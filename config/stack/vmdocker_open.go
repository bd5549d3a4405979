//go:build linux || darwin || windows

package stack

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/guestprogram"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/provider/vmdocker"
)

func openVMDocker(b *Builder, opts Options) (atoll.Provider, error) {
	dir := filepath.Join(b.StateDir, "vmdocker")
	c := b.VMDocker
	machines := vm.Config{
		DataDir: cmp.Or(c.DataDir, filepath.Join(dir, "disks")), ConsoleLogDir: cmp.Or(c.ConsoleLogDir, filepath.Join(dir, "consoles")),
		IdleTimeout: c.IdleTimeout, CPUCount: c.CPUCount, MemoryMB: c.MemoryMB,
	}
	bundles, err := b.Bundles(opts.Log)
	if err != nil {
		return nil, err
	}
	o := machineOptions(b, c.Driver, opts)
	o.Dir, o.Bundles, o.Default = filepath.Join(dir, "machines"), bundles, microvm.EngineOf(o.Driver)
	o.Files = func(spec *atoll.Spec) microvm.Files {
		return microvm.Files{Console: machines.ConsoleLog(spec.Project), Disks: map[string]string{bundle.DataDisk: machines.DataDisk(spec.Project)}}
	}
	m, err := microvm.New(o)
	if err != nil {
		return nil, errors.Join(err, bundles.Close())
	}
	images := &imageSource{builder: b, opts: opts, store: &imageStore{builder: b, opts: opts}}
	closeAll := func() error { return errors.Join(images.store.closeImages(), m.Close(), bundles.Close()) }
	p, err := vmdocker.New(vmdocker.Options{
		Dir: dir, Machines: m, Bundle: o.Default, Forget: m.Forget, Config: machines, Disk: c.Disk, Slow: m.Slow,
		Guest: sync.OnceValues(func() ([]byte, error) { return guestprogram.Load(b.Docker.Guest, b.StateDir) }),
		Image: c.Image, Fetch: images.fetchImage, Log: opts.Log,
	})
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	return &withBundles{atoll.ProviderLayer{Provider: p}, closeAll}, nil
}

// An imageSource gives images to the machines of projects: those of this machine's Docker Engine, if there is one,
// otherwise those of the provider gvisor's store, which pulls missing ones.
type imageSource struct {
	builder *Builder
	opts    Options
	store   *imageStore
}

// fetchImage returns the image ref as an archive, with the name as.
func (s *imageSource) fetchImage(ctx context.Context, ref, as string, policy atoll.PullPolicy, progress func(atoll.Progress)) (io.ReadCloser, error) {
	if ref == as && policy != atoll.PullAlways { // an engine cannot save an image by digest
		if archive, err := s.fromEngine(ctx, ref); err == nil {
			return archive, nil
		}
	}
	return s.store.saveImage(ctx, ref, as, policy, progress)
}

// fromEngine returns an image of this machine's Docker Engine. Callers can ignore its error: there may be no engine.
func (s *imageSource) fromEngine(ctx context.Context, ref string) (io.ReadCloser, error) {
	p, err := openDocker(s.builder, s.opts)
	if err != nil {
		return nil, err
	}
	archive, err := p.(*docker.Provider).Save(ctx, ref)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &withEngine{archive, p.Close}, nil
}

// withEngine closes the provider after the archive that is read from it.
type withEngine struct {
	io.ReadCloser
	after func() error
}

func (e *withEngine) Close() error { return errors.Join(e.ReadCloser.Close(), e.after()) }
