package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/seed46cd37a8/atoll"
)

// Builds reports whether this system can build bundles.
const Builds = true

// Build returns the bundle that r describes, and builds the parts of it that the store
// does not have. All processes together build the same kernel or disk one at a time. An
// interrupted Build leaves nothing. progress may be nil; Build calls it from the calling
// goroutine or from another one, but never concurrently.
//
// Kinds: ErrInvalid (the recipe; a kernel or image that is damaged), ErrUnavailable (a
// tool is missing, or a server does not answer), ErrExhausted, ErrDenied; and those of
// the image. When ctx ends, the error is ctx's.
func (s *Store) Build(ctx context.Context, r Recipe, progress func(atoll.Progress)) (*Bundle, error) {
	r, err := r.withDefaults()
	if err != nil {
		return nil, err
	}
	b, err := s.buildBundle(ctx, r, &meter{notify: progress})
	if err != nil && ctx.Err() != nil {
		err = atoll.E("build", r.Name, atoll.KindOf(ctx.Err()), ctx.Err())
	}
	return b, s.wrapError("build", r.Name, err)
}

func (s *Store) buildBundle(ctx context.Context, r Recipe, m *meter) (*Bundle, error) {
	if s.opts.Guest == nil {
		return nil, atoll.Errorf("build", r.Name, atoll.ErrInvalid, "no guest program to put into the initrd")
	}
	if err := checkTools(r); err != nil {
		return nil, err
	}
	guest, err := s.opts.Guest()
	if err != nil {
		return nil, fmt.Errorf("guest program: %w", err)
	}
	if r.Archive {
		return s.buildArchive(ctx, r, guest, m)
	}
	m.step, m.steps = 1, 3
	kernel, release, err := s.kernelPart(ctx, r, m)
	if err != nil {
		return nil, err
	}
	defer release()
	m.step = 2
	root, release, err := s.rootPart(ctx, r, m)
	if err != nil {
		return nil, err
	}
	defer release()

	m.step = 3
	return s.packBundle(r, m, func(dir string) (*Manifest, error) {
		man := &Manifest{Version: ManifestVersion, Arch: runtime.GOARCH, Kernel: *kernel.Kernel, Disks: []Disk{*root.Disk}}
		if r.Docker {
			man.Init = dockerInit
		}
		for _, p := range []*part{kernel, root} {
			for _, f := range p.listFiles() {
				if err := os.Link(filepath.Join(p.dir, f.Name), filepath.Join(dir, f.Name)); err != nil {
					return nil, err
				}
			}
		}
		load, err := loadPart(kernel, r.moduleNames())
		if err != nil {
			return nil, err
		}
		man.Initrd, err = packInitrd(dir, guest, man.Kernel.Release, load, r.Compress)
		return man, err
	})
}

// packBundle makes the bundle of r. fill puts the files into a directory and returns
// their manifest.
func (s *Store) packBundle(r Recipe, m *meter, fill func(dir string) (*Manifest, error)) (*Bundle, error) {
	t, err := s.newTempDir()
	if err != nil {
		return nil, err
	}
	defer t.close()
	m.startPhase("pack", r.Name)
	dir := filepath.Join(t.dir, "bundle")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	man, err := fill(dir)
	if err != nil {
		return nil, err
	}
	return s.sealBundle(dir, man, r.Name)
}

// packInitrd makes the initrd in dir.
func packInitrd(dir string, guest []byte, release string, load []module, compress bool) (Initrd, error) {
	in := Initrd{Guest: digestOf(guest), Modules: []string{}}
	for _, m := range load {
		in.Modules = append(in.Modules, m.name)
	}
	var archive bytes.Buffer
	mke2fs, err := FindFormatter()
	if err != nil {
		return in, err
	}
	programs, err := withLibraries(mke2fs, formatterPath)
	if err != nil {
		return in, err
	}
	if err := writeInitrd(&archive, guest, release, load, programs); err != nil {
		return in, err
	}
	data := archive.Bytes()
	if compress {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return in, err
		}
		data = z.EncodeAll(data, nil)
	}
	if err := os.WriteFile(filepath.Join(dir, initrdName), data, 0o644); err != nil {
		return in, err
	}
	in.File, err = describeFile(dir, initrdName)
	return in, err
}

// kernelPart returns the part with the kernel of r.
func (s *Store) kernelPart(ctx context.Context, r Recipe, m *meter) (*part, func(), error) {
	// With the modules of all kinds of bundles, so that they share it.
	wanted := slices.Concat(guestModules, markOptional(dockerModules), r.Modules)
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	if r.Docker {
		wanted = slices.Concat(wanted, dockerModules)
	}
	if r.Kernel != "" {
		m.startPhase("read kernel", r.Kernel)
		digest, err := digestFile(ctx, r.Kernel)
		if err != nil {
			return nil, nil, atoll.Errorf("build", r.Name, atoll.KindOf(err), "kernel: %w", err)
		}
		key := []any{"kernel", digest, wanted}
		return s.getPart(ctx, key, false, func(dir string) (*part, error) {
			m.startPhase("unpack kernel", r.Kernel)
			return makeKernel(ctx, dir, r.Kernel, filepath.Base(r.Kernel), wanted)
		})
	}
	pkg, err := newestKernel(ctx)
	if err != nil {
		return nil, nil, err
	}
	return s.getPart(ctx, []any{"kernel", pkg, wanted}, false, func(dir string) (*part, error) {
		m.startPhase("fetch kernel", pkg)
		file, err := downloadPackage(ctx, filepath.Dir(dir), pkg)
		if err != nil {
			return nil, err
		}
		m.startPhase("unpack kernel", pkg)
		return makeKernel(ctx, dir, file, pkg, wanted)
	})
}

func markOptional(modules []string) []string {
	list := slices.Clone(modules)
	for i, m := range list {
		list[i] = strings.TrimSuffix(m, "?") + "?"
	}
	return list
}

func digestFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := copyContext(ctx, sum, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

// rootPart returns the part with the root disk of r.
func (s *Store) rootPart(ctx context.Context, r Recipe, m *meter) (*part, func(), error) {
	if r.Image != "" {
		return s.imagePart(ctx, r, m)
	}
	return s.debianPart(ctx, "debian", FormatSquashfs, r, m, packSquashfs)
}

// debianPart returns the part with the root disk of r's packages, which pack makes.
func (s *Store) debianPart(ctx context.Context, kind, format string, r Recipe, m *meter, pack packer) (*part, func(), error) {
	init := []byte(nil)
	if r.Docker {
		b, err := json.MarshalIndent(dockerInit, "", "\t")
		if err != nil {
			return nil, nil, err
		}
		init = append(b, '\n')
	}
	key := func(kind string) []any {
		return []any{kind, runtime.GOARCH, r.Suite, r.Mirror, r.Packages, string(init)}
	}
	return s.getPart(ctx, key(kind), r.Fresh, func(dir string) (*part, error) {
		d := &Disk{ID: RootDisk, Format: format, Suite: r.Suite}
		return diskPart(ctx, dir, d, pack, func(ctx context.Context, to diskWriter) (err error) {
			if kind != debianArchive && !r.Fresh {
				if d.Packages, err = s.fromArchive(ctx, key(debianArchive), to, m); !errors.Is(err, errNoPart) {
					return err
				}
			}
			m.startPhase("install", r.Suite)
			d.Packages, err = installDebian(ctx, filepath.Dir(dir), r, init, to, m)
			return err
		})
	})
}

// debianArchive is the kind of parts that are archives.
const debianArchive = "debian archive"

// errNoPart says that a part does not exist.
var errNoPart = errors.New("no such part")

// fromArchive writes the files of the archive with that key to a disk, and returns the
// installed packages: a disk need not install them again. The error is errNoPart if there
// is no such archive.
func (s *Store) fromArchive(ctx context.Context, key []any, to diskWriter, m *meter) (installed []string, err error) {
	packed, release, err := s.getPart(ctx, key, false, func(string) (*part, error) { return nil, errNoPart })
	if err != nil {
		return nil, err
	}
	defer release()
	f, err := os.Open(filepath.Join(packed.dir, packed.Disk.Name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m.startPhase("unpack", packed.Disk.Suite)
	return packed.Disk.Packages, readTar(ctx, f, func(hdr *tar.Header, r io.Reader) error {
		if err := to.WriteHeader(hdr); err != nil {
			return err
		}
		_, err := io.Copy(to, r)
		return err
	})
}

// imagePart returns the part with the root disk from the OCI image of r.
func (s *Store) imagePart(ctx context.Context, r Recipe, m *meter) (*part, func(), error) {
	if s.opts.Tree == nil {
		return nil, nil, atoll.Errorf("build", r.Name, atoll.ErrUnsupported, "this store cannot build from images")
	}
	tree, err := s.opts.Tree(ctx, r.Image, r.Pull, m.notify)
	if err != nil {
		return nil, nil, err
	}
	defer tree.Close()
	key := []any{"image", tree.Digest, tree.Owners}
	// A directory has no digest and may have changed: always read it again.
	return s.getPart(ctx, key, tree.Digest == "", func(dir string) (*part, error) {
		m.startPhase("pack disk", r.Image)
		d := &Disk{ID: RootDisk, Format: FormatSquashfs, Image: tree.Digest, Config: &tree.Config}
		return diskPart(ctx, dir, d, packSquashfs, func(ctx context.Context, to diskWriter) error {
			return packTree(ctx, tree, to, m)
		})
	})
}

// A packer makes the file at path from the files that fill writes. If it fails, the file
// may exist.
type packer func(ctx context.Context, path string, fill func(ctx context.Context, to diskWriter) error) error

// diskPart makes the disk d in dir from the files that fill writes.
func diskPart(ctx context.Context, dir string, d *Disk, pack packer, fill func(ctx context.Context, to diskWriter) error) (*part, error) {
	name := d.ID + "." + d.Format
	if err := pack(ctx, filepath.Join(dir, name), fill); err != nil {
		return nil, err
	}
	var err error
	d.File, err = describeFile(dir, name)
	return &part{Disk: d}, err
}
