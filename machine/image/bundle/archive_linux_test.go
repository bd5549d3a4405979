package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// readArchive returns the headers of an archive, by names like /usr/bin/su, and calls each
// with what is in the files.
func readArchive(t *testing.T, file string, each func(name string, r io.Reader) error) map[string]*tar.Header {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*tar.Header{}
	err = readTar(t.Context(), z, func(h *tar.Header, r io.Reader) error {
		name := path.Clean("/" + h.Name)
		all[name] = h
		return each(name, r)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A disk from an archive equals a disk from the archive's sources.
func TestDiskOfArchive(t *testing.T) {
	testenv.Need(t, testenv.Program("sqfstar", "squashfs-tools"))
	s := openStore(t, t.TempDir(), Options{})
	tree := testTree(t)
	key := []any{debianArchive, "test"}
	disk := func(format string, pack packer, fill func(context.Context, diskWriter) error) *part {
		t.Helper()
		p, err := diskPart(t.Context(), t.TempDir(), &Disk{ID: RootDisk, Format: format}, pack, fill)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	direct := func(ctx context.Context, to diskWriter) error { return packTree(ctx, tree, to, &meter{}) }
	fromArchive := func(ctx context.Context, to diskWriter) error {
		installed, err := s.fromArchive(ctx, key, to, &meter{})
		if err == nil && !slices.Equal(installed, []string{"a=1"}) {
			t.Errorf("%q is installed", installed)
		}
		return err
	}
	if _, err := s.fromArchive(t.Context(), key, diskWriter{}, &meter{}); !errors.Is(err, errNoPart) {
		t.Errorf("without an archive: %v", err)
	}
	_, release, err := s.getPart(t.Context(), key, false, func(dir string) (*part, error) {
		return diskPart(t.Context(), dir, &Disk{ID: RootDisk, Format: FormatArchive, Packages: []string{"a=1"}}, packArchive, direct)
	})
	if err != nil {
		t.Fatal(err)
	}
	release()
	want, got := disk(FormatSquashfs, packSquashfs, direct), disk(FormatSquashfs, packSquashfs, fromArchive)
	if want.Disk.Digest != got.Disk.Digest {
		t.Errorf("made of an archive it is %s, else %s", got.Disk.Digest, want.Disk.Digest)
	}
}

// Equal files and guests make equal archives, with all attributes of the files.
func TestArchive(t *testing.T) {
	tree := testTree(t)
	var digests []string
	for range 2 {
		dir := t.TempDir()
		name := filepath.Join(dir, "root.tar.gz")
		err := packArchive(t.Context(), name, func(ctx context.Context, to diskWriter) error { return packTree(ctx, tree, to, &meter{}) })
		if err := errors.Join(err, endArchive(name, []byte("guest"))); err != nil {
			t.Fatal(err)
		}
		f, err := describeFile(dir, "root.tar.gz")
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, f.Digest)
		all := readArchive(t, name, func(name string, r io.Reader) error {
			b, err := io.ReadAll(r)
			if name == GuestPath && string(b) != "guest" {
				t.Errorf("the guest is %q", b)
			}
			return err
		})
		if len(all) != 11 || all["/usr/bin/raised"].Mode != 0o4755 || all[GuestPath].Mode != 0o755 || all[GuestPath].Uid != 0 || !all[GuestPath].ModTime.Equal(epoch) {
			t.Errorf("%q, of which raised %+v, the guest %+v", slices.Sorted(maps.Keys(all)), all["/usr/bin/raised"], all[GuestPath])
		}
		if os.Geteuid() == 0 && (all["/own"].Uid != 1000 || all["/own"].Gid != 50 || all["/usr/bin/ping"].PAXRecords["SCHILY.xattr."+capabilities] == "") {
			t.Errorf("own %+v, ping %+v", all["/own"], all["/usr/bin/ping"])
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("made twice: %q", digests)
	}
}

// The real archive is a complete system with an engine and the guest, and can be pulled
// like other bundles.
func TestDockerArchive(t *testing.T) {
	b := builtBundle(t, "docker-wsl")
	if !b.IsArchive() || b.Init == nil || b.Kernel.Name != "" || b.Initrd.Name != "" || b.Root().Name != "root.tar.gz" {
		t.Errorf("manifest %+v", b.Manifest)
	}
	if size := b.Root().Size; size > 250<<20 {
		t.Errorf("the archive has %s, more than 250 MiB", size)
	}
	all := readArchive(t, b.Path(b.Root().File), func(name string, r io.Reader) error {
		if name != GuestPath {
			return nil
		}
		program, err := io.ReadAll(r)
		if digestOf(program) != b.Root().Guest {
			t.Errorf("the guest has %d bytes, and is not the one of the manifest", len(program))
		}
		return err
	})
	for name, mode := range map[string]int64{
		"/": 0o755, "/etc": 0o755, "/tmp": 0o1777, "/usr/bin/su": 0o4755, "/usr/sbin/dockerd": 0o755, "/usr/sbin/runc": 0o755, GuestPath: 0o755, vm.InitFile: 0o644,
	} {
		if h := all[name]; h == nil || h.Mode != mode || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s: %+v, want mode %o", name, h, mode)
		}
	}
	if h := all["/etc/shadow"]; h == nil || h.Gid != 42 {
		t.Errorf("the passwords are %+v, want group 42's", h)
	}
	for name, h := range all {
		if strings.HasPrefix(name, "/dev/") || h.ModTime.After(epoch) {
			t.Errorf("%s is there, of %s", name, h.ModTime)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := openStore(t, filepath.Dir(filepath.Dir(b.Dir)), Options{}).Export(t.Context(), b, out); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, t.TempDir(), Options{})
	pulled, err := s.Pull(t.Context(), out, PullOptions{Name: "engine"})
	if err != nil || pulled.Digest != b.Digest || !slices.Equal(pulled.Names, []string{"engine"}) {
		t.Fatalf("pulled: %v, %v", pulled, err)
	}
	if err := os.WriteFile(filepath.Join(out, "root.tar.gz"), make([]byte, b.Root().Size), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = openStore(t, t.TempDir(), Options{}).Pull(t.Context(), out, PullOptions{})
	wantKind(t, err, atoll.ErrInvalid, "root.tar.gz")
}
